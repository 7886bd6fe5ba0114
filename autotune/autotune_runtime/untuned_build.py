"""Libraries for a network that was never tuned: another process chooses, compiles and caches its kernels."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .convolution import FilterGradient
from .fusion import LayerProblem

ORIGINS = "origins.json"
"""The last file of a build: BuiltKernel by name, which is `study.layer`."""


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A kernel of an untuned library."""

    origin: str
    """recorded results or the cost model, with details"""
    error_bound: float
    """the largest error: of a sum relative to the sum of its terms' magnitudes, else to the operation's tolerance"""
    most_error: float = 0.0
    """that of a sum of which padding leaves one term, if it is larger: roundings of few terms do not cancel"""


class BuildFailed(RuntimeError):
    """Kernels could not be chosen or compiled."""


def can_build() -> bool:
    """Whether autotune itself is installed, and not only an exported package."""
    return importlib.util.find_spec("autotune") is not None


class UntunedBuild:
    """Libraries of the kernels of some problems, in the user's cache folder; built by all cores if they are not there.

    Recorded results of the problem on this GPU decide, first those of the user's database. Without any, the cost model
    decides: the one in the current folder, or else the bundled one.
    """

    def __init__(self, device: str, model: str, db: str) -> None:
        """Start the process that will build, which reads results meanwhile.

        `device` is autotune's name of the device, and `model` the GPU's own; `db` is the path of the user's database,
        which need not exist.
        """
        version = str(importlib.import_module("autotune").__version__)
        self._words = (model, version, *_stamps(db, f"{db}-wal", "cost-model.json"))
        self._asked = ""
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - of the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "autotune.api.built_library", device, db],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            text=True,
        )

    def expect(self, problems: Mapping[LayerProblem | FilterGradient, str], accuracy: str | None) -> None:
        """Build libraries for problems, which have names for messages, unless the cache has them.

        If `begin` names others later, their kernels are compiled after these.
        """
        text = _study(problems, accuracy)
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        key = hashlib.sha256("\0".join((text, *self._words)).encode()).hexdigest()[:32]
        self.folder = cache / "autotune" / "libraries" / key
        if text == self._asked or (self.folder / ORIGINS).is_file():
            return
        if not self._asked:
            self._began_s = time.perf_counter()
        self._asked, self._count = text, len(problems)
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        with suppress(BrokenPipeError):  # of a process that failed, whose message comes later
            print(json.dumps({"study": text, "out": str(self.folder)}), file=self._process.stdin, flush=True)

    def begin(self, problems: Mapping[LayerProblem | FilterGradient, str], accuracy: str | None) -> None:
        """Build libraries for problems as `expect` does, and no others after them."""
        self.expect(problems, accuracy)
        if (self.folder / ORIGINS).is_file():
            self.cancel()
            return
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def cancel(self) -> None:
        """Build nothing."""
        self._process.kill()
        self._process.communicate()

    def done(self) -> bool:
        """Whether the libraries are there, or failed to build."""
        return self._process.poll() is not None

    def wait(self, meanwhile: Iterable[object] = ()) -> Mapping[str, BuiltKernel]:
        """Wait for the libraries, with a line on standard error; return their kernels by name.

        As long as they are not there, `meanwhile` is iterated over. Raises BuildFailed if they failed to build.
        """
        if not self.done():
            line = f"autotune: choosing and compiling kernels for {self._count} layers"
            shows, steps = sys.stderr.isatty(), iter(meanwhile)
            print(line, end="" if shows else " ...\n", file=sys.stderr, flush=True)
            while not self.done():
                if next(steps, steps) is steps:
                    time.sleep(0.1)
                if shows:
                    print(f"\r{line} ... {self._spent_s:.0f} s", end="", file=sys.stderr, flush=True)
            print("\r" * shows + f"{line}: {self._spent_s:.1f} s", file=sys.stderr, flush=True)
        if not (self.folder / ORIGINS).is_file():
            raise BuildFailed(f"autotune could not build kernels: {self._failure()}")
        found = json.loads((self.folder / ORIGINS).read_text(encoding="utf-8"))
        return {name: BuiltKernel(**kernel) for name, kernel in found.items()}

    @property
    def _spent_s(self) -> float:
        return time.perf_counter() - self._began_s

    def _failure(self) -> str:
        """The last line of the process's messages."""
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1] if lines else f"its process ended with status {self._process.returncode}"


def _stamps(*paths: str) -> Iterator[str]:
    """A value that changes when one of these files changes."""
    for path in map(Path, paths):
        if path.is_file() and (status := path.stat()).st_size:  # a write-ahead log is empty while nobody writes
            yield f"{path.resolve()} {status.st_mtime_ns} {status.st_size}"


def _study(problems: Mapping[LayerProblem | FilterGradient, str], accuracy: str | None) -> str:
    """The text of a study of these problems."""
    lines = ['name = "network"', *([] if accuracy is None else [f'accuracy = "{accuracy}"'])]
    for problem, name in problems.items():
        values = dict(problem.values)
        lines += ["", "[[layer]]", f'name = "{name}"']
        if problem.operation == "conv2d":
            for key in ("stride", "pad", "dilation"):
                lines.append(f"{key} = [{values.pop(f'{key}_h')}, {values.pop(f'{key}_w')}]")
        else:
            lines.append(f'op = "{problem.operation}"')
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"

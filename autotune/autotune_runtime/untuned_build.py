"""Build libraries for a network that was never tuned: another process chooses, compiles and caches the kernels."""

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
from typing import Protocol, TypeVar

ORIGINS = "origins.json"
"""The file that a build writes last: each BuiltKernel's fields, by the kernel's name in the form `study.layer`."""


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A kernel in an untuned library."""

    origin: str
    """where the kernel comes from: recorded results or the cost model, with details"""
    error_bound: float
    """largest error: for sums, relative to the total magnitude of the terms; otherwise, to the operation's tolerance"""
    most_error: float = 0.0
    """largest error of a sum that padding reduces to a single term, if larger than `error_bound`: rounding errors of
    few terms do not cancel
    """


class BuildFailed(RuntimeError):
    """Kernels couldn't be chosen or compiled."""


class BuildProblem(Protocol):
    """A problem that kernels are built for."""

    @property
    def operation(self) -> str:
        """The operation's name."""

    @property
    def values(self) -> Mapping[str, int | str]:
        """The operation's sizes and words. All others have their defaults."""


_AnyProblem = TypeVar("_AnyProblem", bound=BuildProblem)


def can_build() -> bool:
    """Return whether autotune itself is installed, not just an exported package."""
    return importlib.util.find_spec("autotune") is not None


class UntunedBuild:
    """Libraries for a network's problems, in the user's cache folder. Another process builds missing libraries.

    The build chooses a kernel for each problem from recorded results on this GPU, looking in the user's database first.
    For a problem without results, it uses the cost model in the current folder, or else the bundled one. It uses all
    cores.
    """

    def __init__(self, device: str, model: str, db: str) -> None:
        """Start the process that builds, which immediately begins to read results.

        `device` is autotune's name for the device, such as cuda:0, and `model` the GPU's name. `db` is the path of the
        user's database, which doesn't have to exist.
        """
        self._device, self._model, self._db = device, model, db
        self._words = (model, *_stamps(*_installed(), db, f"{db}-wal", "cost-model.json"))
        self._asked = ""
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - of the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "autotune.api.built_library", device, db],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            text=True,
        )

    def another(self) -> UntunedBuild:
        """Start another build for the same device and database."""
        return UntunedBuild(self._device, self._model, self._db)

    def expect(self, problems: Mapping[_AnyProblem, str], accuracy: str | None) -> None:
        """Build libraries for problems unless they are in the cache. `problems` maps each problem to a layer name.

        If `begin` is called with other problems later, their kernels are compiled after these.
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
        with suppress(BrokenPipeError):  # the process failed; `wait` reports its message
            print(json.dumps({"study": text, "out": str(self.folder)}), file=self._process.stdin, flush=True)

    def begin(self, problems: Mapping[_AnyProblem, str], accuracy: str | None) -> None:
        """Build libraries for problems like `expect`, and end the process after the build."""
        self.expect(problems, accuracy)
        if (self.folder / ORIGINS).is_file():
            self.cancel()
            return
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def cancel(self) -> None:
        """Kill the process that builds."""
        self._process.kill()
        self._process.communicate()

    def done(self) -> bool:
        """Whether the build has ended, successfully or not."""
        return self._process.poll() is not None

    def wait(self, meanwhile: Iterable[object] = ()) -> Mapping[str, BuiltKernel]:
        """Wait for the build, print a line on standard error, and return the kernels by name.

        In the meantime, the iterable `meanwhile` is consumed. Raises BuildFailed if the build failed.
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
        """Return the last line that the process printed to standard error."""
        with self._errors:
            self._errors.seek(0)
            lines = self._errors.read().strip().splitlines()
        return lines[-1] if lines else f"its process ended with status {self._process.returncode}"


def _installed() -> Iterator[Path]:
    """Yield autotune's modules, templates and bundled results."""
    resources = importlib.import_module("autotune.resources")
    yield from Path(str(resources.__file__)).parent.rglob("*.py")
    for pattern in ("*.j2", "*.cu*", "*.toml", "*.jinja"):
        yield from resources.shipped("templates").rglob(pattern)
    yield from (resources.shipped("studies") / "recorded").iterdir()


def _stamps(*paths: str | Path) -> Iterator[str]:
    """Yield texts that change when one of these files changes."""
    for path in sorted(map(Path, paths)):
        if path.is_file() and (status := path.stat()).st_size:  # a write-ahead log is empty while no process writes
            yield f"{path.resolve()} {status.st_mtime_ns} {status.st_size}"


def _study(problems: Mapping[_AnyProblem, str], accuracy: str | None) -> str:
    """Return the text of a study file that contains these problems as layers."""
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

"""Libraries for a network that was never tuned: another process chooses, compiles and caches its kernels."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .convolution import Problem

ORIGINS = "origins.json"
"""The last file that `autotune export --library` writes: BuiltKernel by name, which is `study.layer`."""
_STUDY, _LOG = "network.toml", "log.txt"


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A kernel of an untuned library."""

    origin: str
    """recorded results or the cost model, with details"""
    error_bound: float
    """the largest error of a sum, relative to the sum of its terms' magnitudes"""


class BuildFailed(RuntimeError):
    """Kernels could not be chosen or compiled."""


def can_build() -> bool:
    """Whether autotune itself is installed, and not only an exported package."""
    return importlib.util.find_spec("autotune") is not None


class UntunedBuild:
    """Libraries of the kernels of some problems, in the user's cache folder; built by all cores if they are not there.

    Recorded results of this GPU decide if they have a problem, those of the user's database first; otherwise the cost
    model does, if there is none in the current folder the bundled one.
    """

    def __init__(self, problems: Mapping[Problem, str], device: str, model: str, accuracy: str | None, db: str) -> None:
        """Begin to build. `problems` have names for messages; `device` is autotune's name of the device, and `model`
        the GPU's own; `db` is the path of the user's database, which need not exist.
        """
        text = _study(problems, accuracy)
        version = str(importlib.import_module("autotune").__version__)
        words = (text, model, version, *_stamps(db, f"{db}-wal", "cost-model.json"))
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self.folder = cache / "autotune" / "libraries" / hashlib.sha256("\0".join(words).encode()).hexdigest()[:32]
        self._count, self._began_s = len(problems), time.perf_counter()
        self._process: subprocess.Popen[bytes] | None = None
        if (self.folder / ORIGINS).is_file():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / _STUDY).write_text(text, encoding="utf-8")
        command = (sys.executable, "-m", "autotune", "export", str(self.folder / _STUDY), "--untuned", "--library")
        with open(self.folder / _LOG, "wb") as log:
            self._process = subprocess.Popen(
                [*command, "--device", device, "--db", db, "--out", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def done(self) -> bool:
        """Whether the libraries are there, or failed to build."""
        return self._process is None or self._process.poll() is not None

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
        if self._process is not None and self._process.returncode:
            raise BuildFailed(f"autotune could not build kernels: {self._failure()}")
        found = json.loads((self.folder / ORIGINS).read_text(encoding="utf-8"))
        return {name: BuiltKernel(**kernel) for name, kernel in found.items()}

    @property
    def _spent_s(self) -> float:
        return time.perf_counter() - self._began_s

    def _failure(self) -> str:
        """The last line of the process's messages, and where the others are."""
        lines = (self.folder / _LOG).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else 'it said nothing'} (all messages: {self.folder / _LOG})"


def _stamps(*paths: str) -> Iterator[str]:
    """What changes when one of these files does."""
    for path in map(Path, paths):
        if path.is_file():
            status = path.stat()
            yield f"{path.resolve()} {status.st_mtime_ns} {status.st_size}"


def _study(problems: Mapping[Problem, str], accuracy: str | None) -> str:
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

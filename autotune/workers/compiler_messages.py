"""Messages between a parent and a worker that compiles.

They are separate from those of a worker with a device, which need NumPy and all of measurement, so that a compiler
starts in a third of the time.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.compilation.compile import Program, Target


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """Compile a program. Answer: Binary."""

    program: Program
    target: Target


@dataclass(frozen=True, slots=True)
class CompilerRequest:
    """Get ready to compile for a kind of device. Answer: None."""

    kind: str


@dataclass(frozen=True, slots=True)
class Bug:
    """An unexpected exception as text: a pickled traceback would keep device memory alive."""

    traceback: str

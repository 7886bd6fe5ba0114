"""Messages between a parent process and a worker that compiles.

The messages of a worker with a device are in another module, which imports NumPy and all of `measurement`. Without
these imports, a compiler starts in a third of the time.
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
    """Load the compiler for a kind of device. Answer: None."""

    kind: str


@dataclass(frozen=True, slots=True)
class Bug:
    """An unexpected exception, stored as text because a traceback object would keep device memory alive."""

    traceback: str

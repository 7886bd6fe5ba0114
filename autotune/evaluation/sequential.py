"""The base of evaluators that run no kernel: one config at a time, with nothing to get ready or to end."""

from __future__ import annotations

from concurrent.futures import Future

from autotune.compilation.compile import Binary
from autotune.errors import Rejected
from autotune.family.source import KernelSource
from autotune.problem import Problem


class SequentialEvaluator:
    """An Evaluator but for its device, and for what compiling, evaluating and finals come to."""

    @property
    def ahead(self) -> int:
        """One, so that a run can be repeated exactly."""
        return 1

    @property
    def slots(self) -> int:
        """One."""
        return 1

    @property
    def finals_alone(self) -> bool:
        """As everything, in a sequential run."""
        return self.ahead == 1

    def expect(self, problem: Problem) -> None:
        """Nothing to start."""

    def begin_layer(self, problem: Problem) -> None:
        """Every layer is ready."""

    def compile(self, source: KernelSource) -> Future[Binary]:
        """The binary, or the failure to compile, at once."""
        future: Future[Binary] = Future()
        try:
            future.set_result(self._compiled(source))
        except Rejected as rejected:
            future.set_exception(rejected)
        return future

    def _compiled(self, source: KernelSource) -> Binary:
        """A binary of nothing. Raises Rejected for a kernel that is not to compile."""
        raise NotImplementedError

    def refresh(self) -> None:
        """Nothing to replace."""

    def close(self) -> None:
        """Nothing to end."""

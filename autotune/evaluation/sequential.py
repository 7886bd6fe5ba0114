"""The base of evaluators that run no kernels: one config at a time, without preparation."""

from __future__ import annotations

from concurrent.futures import Future

from autotune.compilation.compile import Binary
from autotune.errors import Rejected
from autotune.family.source import KernelSource
from autotune.problem import Problem


class SequentialEvaluator:
    """An Evaluator without a device; a subclass adds it and the results of compiling, evaluating and finals."""

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
        """Whether the run is sequential."""
        return self.ahead == 1

    def expect(self, problem: Problem) -> None:
        """Nothing to start."""

    def begin_layer(self, problem: Problem) -> None:
        """Every layer is ready."""

    def compile(self, source: KernelSource) -> Future[Binary]:
        """A finished future with the binary or the failure."""
        future: Future[Binary] = Future()
        try:
            future.set_result(self._compiled(source))
        except Rejected as rejected:
            future.set_exception(rejected)
        return future

    def _compiled(self, source: KernelSource) -> Binary:
        """An empty binary. Raises Rejected for a kernel whose compilation should fail."""
        raise NotImplementedError

    def refresh(self) -> None:
        """Nothing to replace."""

    def close(self) -> None:
        """Nothing to end."""

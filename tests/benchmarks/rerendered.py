"""Check whether recorded winners are as fast as before when their families render them now.

    python -m tests.benchmarks.rerendered [--db studies/recorded/networks.db ...] [--seconds 0.5]

Compiles the best kernels of each database whose text has changed, as stored and as rendered now. If the machine code
differs, both are verified and timed interleaved on the first CUDA device. Prints a line for each kernel, the slowest
last, and the number of kernels with the same machine code. Exits with 1 if one is wrong, or slower by more than 2 % and
the noise.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from autotune.analysis.rerender import located
from autotune.api.device_names import first_gpu
from autotune.compilation.compile import Binary
from autotune.devices.host_machine import usable_cores
from autotune.errors import Rejected
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.source import KernelSource
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_templates
from autotune.measurement.benchmark import median_half_width
from autotune.store import Store
from autotune.workers.worker import FinalsRequest

from .winners import RECORDED, Winner, winners

SLOWER = 0.02  # fraction, beyond the noise


@dataclass(frozen=True, slots=True)
class Changed:
    """A recorded winner whose text has changed."""

    winner: Winner
    now: KernelSource
    compiled: tuple[Future[Binary], Future[Binary]]

    @property
    def same(self) -> bool:
        """Whether both have the same machine code."""
        before, after = (one.result() for one in self.compiled)
        return before.image == after.image


@dataclass(frozen=True, slots=True)
class Line:
    """The result for one winner."""

    name: str
    template: str
    before_us: float
    now_us: float
    noise: float
    wrong: str = ""

    @property
    def slower(self) -> bool:
        """Whether the current kernel is wrong, or slower by more than the noise."""
        return bool(self.wrong) or self.now_us > self.before_us * (1 + SLOWER + self.noise)

    def __str__(self) -> str:
        times = self.wrong or f"{self.before_us:9.2f} {self.now_us:9.2f} us  {self.now_us / self.before_us:.3f}"
        return f"{self.name:45} {self.template:26} {times}  {'SLOWER' if self.slower else ''}"


def changed(
    store: Store, families: Mapping[str, KernelTemplate], evaluator: DeviceEvaluator
) -> Iterator[Changed | str]:
    """The best kernels of a database whose text has changed; as messages those that no family renders."""
    for winner in winners(store, families):
        now = winner.now
        if isinstance(now, str):
            yield f"{winner.name}: {winner.template} {now}"
        elif now.hash != winner.stored.hash:
            yield Changed(winner, now, (evaluator.compile(winner.stored), evaluator.compile(now)))


def timed(one: Changed, families: Mapping[str, KernelTemplate], evaluator: DeviceEvaluator, seconds: float) -> Line:
    """Verify both kernels and time them interleaved."""
    before, after = (compiled.result() for compiled in one.compiled)
    row, name, template = one.winner.row, one.winner.name, one.winner.template
    measurement_mode = row.row.measurement_mode
    try:
        evaluator.begin_layer(located(row.layer.problem, families))
        evaluator.evaluate(one.now, after, cache=measurement_mode, best_us=None)
        pairs = ((one.winner.stored, before), (one.now, after))
        first, second = evaluator.finals(FinalsRequest(pairs, (), measurement_mode, seconds, 0)).kernels
    except Rejected as rejected:
        return Line(name, template, 0.0, 0.0, 0.0, f"{rejected.outcome} {rejected.reason}: {rejected.message}")
    noise = sum(median_half_width(each.samples_us) / each.median_us for each in (first, second))
    return Line(name, template, first.median_us, second.median_us, noise)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--db", type=Path, nargs="+", default=RECORDED)
    parser.add_argument("--seconds", type=float, default=0.5, help="of timing a pair")
    asked = parser.parse_args(arguments)
    families = load_templates(())
    evaluator = first_gpu(usable_cores())
    lines, same = [], 0
    try:
        for db in asked.db:
            with Store(db, create=False) as store:
                for one in list(changed(store, families, evaluator)):
                    if isinstance(one, str):
                        print(one)
                    elif one.same:
                        same += 1
                    else:
                        lines.append(timed(one, families, evaluator, asked.seconds))
                        print(lines[-1], flush=True)
    finally:
        evaluator.close()
    slower = [line for line in lines if line.slower]
    print(f"{same} the same machine code; {len(lines)} timed, of which {len(slower)} slower:")
    print(*slower, sep="\n")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())

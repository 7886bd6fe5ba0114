"""Run all layers in one pipeline: choose which layer starts the next config, and when finals run.

Without a total budget, layers are tuned in order. Later layers use the capacity that is left while an earlier one waits
for its first results or runs its finals. With a total budget, every layer first gets one config, and each further
config goes to the layer with the largest expected saving. Both orders depend only on the layers' histories, so a
resumed run continues just as the interrupted one would have.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from dataclasses import replace

from autotune.measurement.roofline import floor_us
from autotune.tuning.layer_result import LayerResult
from autotune.tuning.pipeline import Pipeline
from autotune.tuning.trial_log import Network, Progress
from autotune.tuning.tuned_layer import OpenLayer, Run, TunedLayer

DECAY = 1.5
"""Exponent of the expected gain, which falls with the number of evaluations n as n^-1.5.

docs/search.md lists alternatives.
"""


def expected_gain_us(*, count: int, evaluated: int, best_us: float, floor_us: float | None) -> float:
    """Return the expected reduction of the network's time by a layer's next evaluation, up to a common factor.

    The layer runs `count` times in the network. `best_us` is the time of its best kernel, `evaluated` the number of
    evaluations including pending ones, and `floor_us` the minimum time of any kernel, if known. If `best_us` is below
    the floor, the floor is wrong and therefore ignored, so that the result isn't negative.
    """
    above_us = best_us - (floor_us or 0.0)
    return count * (above_us if above_us > 0 else best_us) / math.pow(max(1, evaluated), DECAY)


LISTING = 0.5  # maximum share of a total time that listing the spaces may use; a late kernel is better than none
AT_ROOFLINE = 1.02  # with a shared budget, a layer stops when its best time is at most this factor times the floor
TIME_IN_TOTAL, BUDGET_IN_TOTAL, ROOFLINE = "time in total", "budget in total", "at its roofline"
"""reasons why a layer with a shared budget stopped"""


class Schedule:
    """Tunes layers of different shapes concurrently.

    `listing_s` is the time that it took to list the layers' search spaces, which counts towards a total time.
    """

    def __init__(self, run: Run, layers: Sequence[OpenLayer], listing_s: float = 0.0) -> None:
        self._run, self._study = run, run.study
        self._listing_s = listing_s
        observed = replace(run, observe=self._observe) if len(layers) > 1 else run
        self._layers = [TunedLayer(observed, opened) for opened in layers]
        self._started = self._charged = run.clock()
        self._pipeline = Pipeline(run.evaluator, clock=run.clock)
        self._finals: dict[TunedLayer, tuple[Generator[Future[object], None, None], Future[object]]] = {}
        plan = run.finals
        self._finals_s = plan.each_s(len(layers), self._study.time_budget_total_s) if plan else 0.0
        """limit for one layer's finals, wall clock"""

    def run(self) -> tuple[LayerResult, ...]:
        """Evaluate configs until the budgets, the time or the search spaces are used up.

        Returns the results of all layers that were started.
        """
        with self._pipeline as pipeline:
            for tuned in self._layers:
                if tuned.suspects or tuned is self._layers[0]:
                    tuned.begin(pipeline)
            while self._open:
                self._end_what_is_done()
                chosen = self._next()
                if chosen is not None and not chosen.begun:
                    chosen.begin(pipeline)
                elif (
                    chosen is not None
                ):  # one proposal at a time, so that results don't have to wait for further proposals
                    chosen.ask(pipeline)
                self._conclude()
                pipeline.advance(wait=self._next() is None, others=[future for _, future in self._finals.values()])
                self._charge()
        return tuple(tuned.result for tuned in self._layers if tuned.result)

    @property
    def _open(self) -> list[TunedLayer]:
        """The layers that aren't done. After an interruption, this includes only layers that were started."""
        interrupted = self._run.stopping()
        return [tuned for tuned in self._layers if tuned.result is None and (tuned.begun or not interrupted)]

    @property
    def _shared(self) -> bool:
        """Whether the layers share one budget."""
        return self._study.time_budget_total_s is not None or self._study.trials_total is not None

    def _charge(self) -> None:
        """Divide the elapsed time among the layers being searched."""
        now = self._run.clock()
        searched = [tuned for tuned in self._layers if tuned.begun and not tuned.stopped]
        for tuned in searched:
            tuned.spent_s += (now - self._charged) / len(searched)
        self._charged = now

    # Which layer is next.

    def _next(self) -> TunedLayer | None:
        """Return the layer that should begin or start a config now, or None if there is no capacity."""
        if self._must_wait() or not self._pipeline.can_start:
            return None
        open_layers = [tuned for tuned in self._open if not tuned.stopped or not tuned.begun]
        ready = [tuned for tuned in open_layers if tuned.begun and tuned.can_start(self._pipeline)]
        waiting = [tuned for tuned in open_layers if not tuned.begun]
        if not self._shared:
            return min((*ready, *waiting[:1]), key=self._layers.index, default=None)
        untried = [tuned for tuned in ready if not self._tried(tuned)]
        first = [*untried, *waiting]
        return first[0] if first else max(ready, key=self._gain_us, default=None)

    def _must_wait(self) -> bool:
        """Whether finals are due or running, and the evaluator requires them to run alone."""
        return self._run.evaluator.finals_alone and any(self._due(tuned) for tuned in self._layers)

    def _due(self, tuned: TunedLayer) -> bool:
        """Return whether a layer isn't done but won't start any more configs."""
        return tuned.begun and bool(tuned.stopped) and tuned.result is None

    def _searching_s(self, total_s: float) -> float:
        """Return the part of the total time that is left for the search, after listing and all finals."""
        return total_s - min(self._listing_s, LISTING * total_s) - self._finals_s * len(self._layers)

    def _tried(self, tuned: TunedLayer) -> int:
        """Return the number of a layer's evaluations, including pending ones."""
        return tuned.evaluated + tuned.under_way(self._pipeline)

    def _gain_us(self, tuned: TunedLayer) -> float:
        """Return the expected saving from a layer's next config.

        Until a layer has a correct kernel, it is assumed to be as slow as the slowest layer.
        """
        slowest = max((one.best_us for one in self._layers if one.best_us), default=1.0)
        return expected_gain_us(
            count=tuned.layer.count,
            evaluated=self._tried(tuned),
            best_us=tuned.best_us or slowest,
            floor_us=self._floor_us(tuned),
        )

    # When to stop.

    def _end_what_is_done(self) -> None:
        """Stop layers whose shared budget is used up, or that have almost reached their floor."""
        if not self._shared:
            return
        spent = self._spent()
        for tuned in self._layers:
            if not tuned.stopped:
                tuned.stopped = spent or (ROOFLINE if self._at_roofline(tuned) else "")

    def _at_roofline(self, tuned: TunedLayer) -> bool:
        """Return whether a layer's best time is almost at the floor. If a kernel beats the floor, the floor is wrong,
        so return False.
        """
        floor, best_us = self._floor_us(tuned), tuned.best_us
        return floor is not None and best_us is not None and floor <= best_us <= AT_ROOFLINE * floor

    def _spent(self) -> str:
        """Return which total budget is used up, or "" if there is some left."""
        total_s, total = self._study.time_budget_total_s, self._study.trials_total
        if total_s is not None and self._elapsed_s >= self._searching_s(total_s):
            return TIME_IN_TOTAL
        if total is not None and self._evaluations >= total:
            return BUDGET_IN_TOTAL
        return ""

    @property
    def _elapsed_s(self) -> float:
        return self._run.clock() - self._started

    @property
    def _evaluations(self) -> int:
        """The number of evaluations of all layers, including pending ones."""
        return sum(tuned.evaluated for tuned in self._layers) + self._pipeline.under_way

    def _conclude(self) -> None:
        """Start the finals of layers that have stopped, and resume finals that can continue."""
        for tuned in self._layers:
            if self._due(tuned) and tuned not in self._finals and self._settled(tuned):
                self._go_on(tuned, tuned.conclude(self._pipeline, self._finals_s))
        for tuned, (finals, future) in list(self._finals.items()):
            if future.done():
                self._go_on(tuned, finals)

    def _settled(self, tuned: TunedLayer) -> bool:
        """Return whether a layer's finals can start without waiting for pending trials or other finals."""
        if self._run.evaluator.finals_alone:
            return not self._pipeline.under_way and not self._finals
        return not tuned.under_way(self._pipeline)

    def _go_on(self, tuned: TunedLayer, finals: Generator[Future[object], None, None]) -> None:
        """Resume finals until they have to wait for a future or have ended."""
        self._finals.pop(tuned, None)
        for future in finals:
            if not future.done():
                self._finals[tuned] = finals, future
                return

    # Progress.

    def _floor_us(self, tuned: TunedLayer) -> float | None:
        best = tuned.log.best
        return floor_us(tuned.layer.problem, best.accuracy, self._run.rates) if best else None

    def _observe(self, progress: Progress) -> None:
        """Add the network's progress to a layer's progress, and report both."""
        timed = [tuned for tuned in self._layers if tuned.best_us]
        floors = [tuned.layer.count * floor for tuned in timed if (floor := self._floor_us(tuned)) is not None]

        def ended(tuned: TunedLayer) -> bool:
            """Whether this is the layer's last report."""
            return progress.ended and tuned.log.label == progress.layer

        done = sum(tuned.evaluated for tuned in self._layers)
        network = Network(
            layers=len(self._layers),
            timed=len(timed),
            now_us=sum(tuned.layer.count * (tuned.best_us or 0.0) for tuned in timed),
            start_us=sum(tuned.layer.count * (tuned.start_us or 0.0) for tuned in timed),
            floor_us=sum(floors) if len(floors) == len(timed) else None,
            done=done,
            budget=max(done, self._study.trials_total)
            if self._study.trials_total
            else sum(max(tuned.evaluated, self._study.trials) for tuned in self._layers),
            elapsed_s=self._listing_s + self._elapsed_s,
            budget_s=self._study.time_budget_total_s,
            searching=sum(not tuned.stopped for tuned in self._layers),
            concluded=sum(tuned.result is not None or ended(tuned) for tuned in self._layers),
            ended=all(ended(tuned) for tuned in self._open),
        )
        self._run.observe(replace(progress, network=network))

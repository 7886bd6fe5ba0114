"""study -> dispatch: search a rule as a tuning target: its threshold and the kernels of both sides together.

An evaluation needs the times of two kernels, one config below the threshold and one above it, each compiled for the
shapes of its layers. Its value is the total time of all layers, weighted by count. Stored times are not measured again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np

from autotune.dispatch.cells import SAFE, Row, Run, measure, read_row
from autotune.dispatch.dispatcher import DEFAULT, FAMILY, Dispatcher, Leaf, PortfolioKernel, Split
from autotune.dispatch.header import DispatchTemplate, dispatch_program
from autotune.dispatch.matrix import Bools, Ints, default_config
from autotune.dispatch.plan import kernel_names
from autotune.dispatch.rule_space import Pair, RuleSpace, Side
from autotune.dispatch.rule_trials import check_choices, portfolio_kernel
from autotune.dispatch.thresholds import Gap, gaps_of
from autotune.errors import StudyError
from autotune.evaluation.evaluator import Chooser
from autotune.family.space import SearchSpace
from autotune.problem import Layer, as_conv2d
from autotune.search import Search, single_threaded
from autotune.store import DispatchedLayer, TemplateRecord, total_timing
from autotune.study import NamedRule, distinct_layers
from autotune.trial import Config, Outcome, Trial
from autotune.tuning.trial_log import Progress
from autotune.tuning.tune import measurement_mode

KNOWN = "known"
"""`proposed_by` of the best rule between kernels whose times are known already."""
TOGETHER = 4
"""Rules under way at once: the kernels of one are compiled while those of another run."""


@dataclass(frozen=True, slots=True)
class SearchedRule:
    """The best rule of a search."""

    dispatcher: Dispatcher
    layers: tuple[DispatchedLayer, ...]
    total_us: float
    """total over the searched layers, weighted by count"""
    tried: int
    """rules that were evaluated, also by earlier runs"""
    evaluated: int
    """rules that this run evaluated"""
    measured: int
    """kernels that this run measured; each layer counts separately"""


@single_threaded()
def search_rule(run: Run, template: DispatchTemplate, rule: NamedRule, layers: Sequence[Layer]) -> SearchedRule:
    """Search a rule for some layers of its study; the held-out layers evaluate the best one.

    Raises StudyError if no kernel supports a side, or if no rule is correct.
    """
    return _Search(run, template, rule, layers).run()


class _Search:
    """One search: the layers with their known times, and the spaces of rules."""

    def __init__(self, run: Run, template: DispatchTemplate, rule: NamedRule, layers: Sequence[Layer]) -> None:
        self.run_of, self.template, self.rule = run, template, rule
        study, info = run.study, run.evaluator.info
        self.began_s = run.clock()
        self.where = f"{study.shown}: rule {rule.name!r}"
        unknown = set(rule.properties) - {item.name for item in template.properties}
        if unknown:
            names = ", ".join(item.name for item in template.properties)
            raise StudyError(f"{self.where}: property {unknown.pop()!r}: expected one of {names}")
        searched = distinct_layers(layers)
        problems = {layer.problem for layer in searched}
        of_study = [layer for layer in distinct_layers(study.layers) if layer.problem not in problems]
        for layer in (*searched, *of_study):
            as_conv2d(layer.problem, "a dispatcher")
        record = TemplateRecord(FAMILY, template.hash, template.header)
        self.rows = [read_row(run, layer) for layer in searched]
        self.held_out = [read_row(run, layer) for layer in of_study]
        self.gaps = self._gaps()
        self.sides = (self._sides(rule.below), self._sides(rule.above))
        self.key = key = run.store.studies.begin(study)
        self.scope = run.store.scopes.open_set(
            key, searched, info, run.evaluator.environment, measurement_mode(study), record
        )
        self.known = dict(run.store.dispatchers.trials(self.scope))
        self.next_number = run.store.trials.next_number(self.scope)
        self.evaluated = self.measured = 0

    def run(self) -> SearchedRule:
        """Search, then evaluate the best rule."""
        self._begin()
        spaces = self._spaces()
        of_template = {space.template: space for space in spaces}
        search = Search(
            spaces,
            sampler=self.run_of.study.sampler,
            seed=self.run_of.study.seed,
            budget=self.rule.trials,
            history=[trial for pair in self._tried() for trial in _in_spaces(spaces, pair, self.known[pair.config()])],
        )
        together = 1 if self.run_of.evaluator.ahead == 1 else TOGETHER
        while (left := self.rule.trials - len(self._tried())) > 0 and not self.run_of.stopping():
            numbers = range(self.next_number, self.next_number + min(left, together))
            points = [point for number in numbers if (point := search.ask(number))]
            if not points:
                break
            pairs = [of_template[point.template].pair(point) for point in points]
            self._measure(pairs)
            tried = [self._try(pair, search.proposed_by(point)) for point, pair in zip(points, pairs, strict=True)]
            tried.append(self._try_known())
            for trial in filter(None, tried):
                if pair := Pair.of(trial.config):
                    for each in _in_spaces(spaces, pair, trial):
                        search.tell(each)
            self._report()
        self._report(ended=True)
        return self._judge()

    def _begin(self) -> None:
        """Try the rules for which the study gives a threshold and techniques, then the best one between measured
        kernels.
        """
        pairs = [(pair, rule.name) for rule in self.run_of.study.rules if (pair := self._pair_of(rule))]
        self._measure([pair for pair, _ in pairs])
        for pair, name in pairs:
            self._try(pair, name)
        self._try_known()

    # The space.

    def _gaps(self) -> Mapping[Gap, Bools]:
        """Every threshold between two layers, with the layers below it."""
        names = self.rule.properties
        values = np.stack([self._values(name) for name in names], axis=1)
        gaps = {gap: self._below(gap) for gap in gaps_of(names, values)}
        if not gaps:
            raise StudyError(f"{self.where}: all layers have the same {' and '.join(names)}: there is no threshold")
        return gaps

    def _values(self, name: str) -> Ints:
        """[layers]; a property."""
        of = next(item.plain for item in self.template.properties if item.name == name)
        return np.array([of.of(row.layer.problem) for row in self.rows], dtype=np.int64)

    def _below(self, gap: Gap) -> Bools:
        """[layers]; whether each layer is below a threshold."""
        below: Bools = self._values(gap.property) < gap.threshold
        return below

    def _spaces(self) -> list[RuleSpace]:
        """A space for each family below with each family above; kernels with known times are kept if it is
        too large.
        """

        def layers_with_time(config: Config) -> int:
            return sum(row.times_us.get(config) is not None for row in self.rows)

        known = sorted(self._timed(), key=lambda config: (-layers_with_time(config), str(config)))
        seed = self.run_of.study.seed
        spaces = [RuleSpace(below, above, self.gaps, seed=seed, first=known) for below, above in product(*self.sides)]
        if not any(len(space.rows) for space in spaces):
            raise StudyError(
                f"{self.where}: no threshold has a kernel of {', '.join(self.rule.below)} for every layer below it and "
                f"one of {', '.join(self.rule.above)} for the others; name more families or widen [space]"
            )
        return [space for space in spaces if len(space.rows)]

    def _pair_of(self, rule: NamedRule) -> Pair | None:
        """A rule with this threshold and the first kernel of each technique that supports its side; None if there is
        none.
        """
        if rule.threshold is None or rule.properties[0] not in {item.name for item in self.template.properties}:
            return None
        gap = Gap(rule.properties[0], rule.threshold)
        mask, kernels = self._below(gap), []
        for names, layers in ((rule.below, mask), (rule.above, ~mask)):
            serving = [(side, rows) for side in self._sides(names) if len(rows := side.serving(layers))]
            kernels += [side.config(int(rows[0])) for side, rows in serving[:1]]
        return Pair(gap, *kernels) if len(kernels) == 2 else None

    def _sides(self, names: Sequence[str]) -> list[Side]:
        """The kernels that a side may have."""
        return [side for name in names if (side := self._side(name)) is not None]

    @cache  # noqa: B019 - a search ends with its command
    def _side(self, name: str) -> Side | None:
        """The kernels of a technique or family; None if no layer has any."""
        family, narrowed = self.run_of.study.side(name)
        seed = self.run_of.study.seed
        bounds = [row.bounds[family] for row in self.rows]
        spaces = [SearchSpace(bound, narrowed, seed=seed) if bound.supported else None for bound in bounds]
        return Side.of(name, spaces) if any(space is not None and len(space.rows) for space in spaces) else None

    # What is known.

    def _timed(self) -> Mapping[Config, None]:
        """Every kernel with a time on some layer."""
        return dict.fromkeys(config for row in self.rows for config, us in row.times_us.items() if us is not None)

    def _tried(self) -> list[Pair]:
        """The rules of this kind that have a trial, in the order of their numbers."""
        trials = sorted(self.known.values(), key=lambda trial: trial.number)
        return [pair for trial in trials if (pair := Pair.of(trial.config)) is not None]

    def _best_known(self) -> Pair | None:
        """The fastest rule between kernels that were measured on all layers of their side."""
        kernels = [*self._timed()]
        sides = [[any(side.has(config) for side in of) for config in kernels] for of in self.sides]
        weights = np.array([row.layer.count for row in self.rows])
        times = np.array([[row.times_us.get(config) or np.inf for config in kernels] for row in self.rows])
        weighted = (weights[:, None] * times).reshape(len(self.rows), len(kernels))
        best: tuple[float, Pair] | None = None
        for gap, mask in self.gaps.items():
            totals = [
                np.where(allowed, weighted[layers].sum(axis=0), np.inf)
                for allowed, layers in zip(sides, (mask, ~mask), strict=True)
            ]
            total = sum(float(one.min(initial=np.inf)) for one in totals)
            if total < (best[0] if best else np.inf):
                below, above = (kernels[int(np.argmin(one))] for one in totals)
                best = total, Pair(gap, below, above)
        return best[1] if best else None

    # One rule.

    def _serving(self, pair: Pair) -> list[tuple[Row, Config]]:
        """Each layer with the kernel of its side."""
        below = self._below(pair.gap).tolist()
        return [(row, pair.below if low else pair.above) for row, low in zip(self.rows, below, strict=True)]

    def _measure(self, pairs: Sequence[Pair]) -> None:
        """Measure the kernels of some rules on the layers of their sides."""
        wanted: dict[int, dict[Config, None]] = {}
        for pair in pairs:
            for at, (row, config) in enumerate(self._serving(pair)):
                if config not in row.times_us:
                    wanted.setdefault(at, {})[config] = None
        self.measured += measure(self.run_of, self.key, [(self.rows[at], [*configs]) for at, configs in wanted.items()])

    def _try(self, pair: Pair, proposed_by: str) -> Trial | None:
        """The trial of a rule whose kernels were measured; None if the run was stopped before that."""
        config = pair.config()
        if config in self.known:
            return self.known[config]
        serving = self._serving(pair)
        if any(kernel not in row.times_us for row, kernel in serving):
            return None
        trial = Trial(self.next_number, config, Outcome.CORRECT)
        failed = next(((row, kernel) for row, kernel in serving if row.times_us[kernel] is None), None)
        if failed is None:
            total_us = sum(row.layer.count * (row.times_us[kernel] or 0.0) for row, kernel in serving)
            trial = replace(trial, timing=total_timing(total_us))
        else:
            message = f"{failed[1]} is not correct on {failed[0].layer.name}"
            trial = replace(trial, outcome=Outcome.WRONG_RESULT, reason="unverified", message=message)
        self.run_of.store.dispatchers.add_trial(self.scope, trial, trial.median_us, proposed_by=proposed_by)
        self.known[config] = trial
        self.next_number += 1
        self.evaluated += 1
        return trial

    def _try_known(self) -> Trial | None:
        """The trial of the best rule between kernels whose times are known."""
        known = self._best_known()
        return None if known is None or self.run_of.stopping() else self._try(known, KNOWN)

    def _report(self, *, ended: bool = False) -> None:
        best = best_rule(self.known.values())
        progress = Progress(
            layer=f"{self.run_of.study.name}: {self.rule.name}",
            done=len(self._tried()),
            budget=self.rule.trials,
            best=best[1] if best else None,
            failures={},
            elapsed_s=self.run_of.clock() - self.began_s,
            reused=0,
            ended=ended,
        )
        self.run_of.observe(progress)

    # The best one.

    def _judge(self) -> SearchedRule:
        """The best rule as a dispatcher, run on the device, with its times on the held-out layers."""
        best = best_rule(self.known.values())
        if best is None:
            raise StudyError(f"{self.where}: no rule is correct")
        pair, trial = best
        dispatcher = self._dispatcher(pair)
        if isinstance(self.run_of.evaluator, Chooser):
            binary = self.run_of.evaluator.build(dispatch_program(self.template, dispatcher)).result()
            check_choices(self.run_of, dispatcher, binary, [row.layer for row in (*self.rows, *self.held_out)])
        kernels = {row.layer: dispatcher.choose(row.layer.problem).kernel for row in (*self.rows, *self.held_out)}
        wanted = [
            (row, [kernel.config])
            for row in self.held_out
            if (kernel := kernels[row.layer]) is not None and kernel.config not in row.times_us
        ]
        self.measured += measure(self.run_of, self.key, wanted)
        layers = tuple(
            _dispatched(row, kernels[row.layer], dispatcher, held_out=row in self.held_out)
            for row in (*self.rows, *self.held_out)
            if row.best_us is not None
        )
        self.run_of.store.dispatchers.add(self.scope, trial.number, dispatcher.to_json(), layers)
        return SearchedRule(
            dispatcher=dispatcher,
            layers=layers,
            total_us=trial.median_us or 0.0,
            tried=len(self._tried()),
            evaluated=self.evaluated,
            measured=self.measured,
        )

    def _dispatcher(self, pair: Pair) -> Dispatcher:
        problems = [row.layer.problem for row in self.rows]
        below, above = kernel_names([pair.below, pair.above])
        default = default_config(self.run_of.templates[SAFE])
        kernels = [
            portfolio_kernel(self.run_of, problems, name, config)
            for name, config in ((below, pair.below), (above, pair.above), (DEFAULT, default))
        ]
        properties = [
            item.around([item.plain.of(problem) for problem in problems]) for item in self.template.properties
        ]
        rule = Split(pair.gap.property, pair.gap.threshold, Leaf((below,)), Leaf((above,)))
        return Dispatcher(tuple(properties), tuple(kernels[:-1]), kernels[-1], rule)


def _in_spaces(spaces: Sequence[RuleSpace], pair: Pair, trial: Trial) -> Iterator[Trial]:
    """A rule's trial in each space that contains the rule: kernels of a technique are also kernels of its family."""
    return (replace(trial, config=point) for space in spaces if (point := space.point(pair)))


def best_rule(trials: Iterable[Trial]) -> tuple[Pair, Trial] | None:
    """The fastest correct rule of a search, among the trials of a set of layers."""
    timed = [(pair, trial) for trial in trials if trial.median_us is not None and (pair := Pair.of(trial.config))]
    return min(timed, key=lambda one: one[1].median_us or 0.0, default=None)


def _dispatched(row: Row, kernel: PortfolioKernel | None, dispatcher: Dispatcher, *, held_out: bool) -> DispatchedLayer:
    """The row of a layer under a rule; other ways to choose are not evaluated."""
    time_us = None if kernel is None else row.times_us.get(kernel.config)
    return DispatchedLayer(
        layer=row.layer,
        role="held out" if held_out else "tuned",
        kernel=None if kernel is None else kernel.name,
        default_first=dispatcher.choose(row.layer.problem).default_first,
        time_us=time_us,
        best_us=row.best_us or 0.0,
        left_out_us=None,
        default_us=row.times_us.get(dispatcher.default.config),
        single_us=None,
        nearest_us=None,
    )

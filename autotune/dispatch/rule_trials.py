"""matrix -> dispatch: try rules, each as a trial of the set of layers: compile it, run its choices, and store it.

The kernels that a rule chooses were verified and timed on the layers in other trials, so the rule's time is the sum of
theirs, weighted by count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np

from autotune.compilation.compile import Binary
from autotune.dispatch.cells import Run
from autotune.dispatch.dispatcher import DEFAULT, Dispatcher, PortfolioKernel, Rule
from autotune.dispatch.header import dispatch_program, table_row
from autotune.dispatch.matrix import Matrix, lost_us
from autotune.dispatch.plan import Plan, chosen, costs_of
from autotune.dispatch.predicate import predicate
from autotune.dispatch.thresholds import best_rule, simplest
from autotune.errors import Rejected, StudyError
from autotune.evaluation.evaluator import Chooser
from autotune.family.space import Admission, BoundTemplate
from autotune.measurement.dispatcher_check import ChoicesRequest
from autotune.problem import Layer, Problem
from autotune.store import TargetScope
from autotune.trial import Config, Outcome, Trial
from autotune.tuning.pipeline import rejected_trial

EXACT = "exact"
"""`proposed_by` of the rules that lose the least time according to the matrix."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A rule that was tried, and its result."""

    rule: Rule
    total_us: float
    """total time of the layers that the rule was built from, weighted by count"""
    held_out_us: float | None
    """total time of the held-out layers; None if no layer is held out"""
    outcome: Outcome
    reason: str
    number: int
    proposed_by: str


class RuleTrials:
    """Tries rules for a portfolio."""

    def __init__(
        self,
        run: Run,
        matrix: Matrix,
        rows: Sequence[int],
        plan: Plan,
        scope: TargetScope,
        held: Sequence[int] = (),
    ) -> None:
        self.run_of, self.matrix, self.rows, self.plan = run, matrix, list(rows), plan
        self.scope, self.held = scope, list(held)
        self.costs = costs_of(matrix, plan)
        self.kernels = self._kernels()
        self.known = dict(run.store.dispatchers.trials(scope))
        self.next_number = run.store.trials.next_number(scope)
        self.evaluated = 0
        self.compiles = isinstance(run.evaluator, Chooser)

    def dispatcher(self, rule: Rule) -> Dispatcher:
        """Return the dispatcher with a rule."""
        known = tuple(map(tuple, self.matrix.values[list(self.plan.known)].tolist()))
        return Dispatcher(self.plan.properties, self.kernels[:-1], self.kernels[-1], rule, known)

    def run(self, named: Mapping[Rule, str]) -> list[Tried]:
        """Try the named rules, the plan's rule, and the best rule with at most one threshold."""
        exact = dict.fromkeys([self.plan.rule, best_rule(self.costs)], EXACT)
        rules = {**exact, **named}
        binaries = [self._compiled(rule) for rule in rules]
        return [self._try(rule, by, binary) for (rule, by), binary in zip(rules.items(), binaries, strict=True)]

    def decide(self, tried: Sequence[Tried], within_us: float) -> Tried:
        """Return the simplest correct rule that loses at most `within_us` relative to the best one.

        If the plan puts the default first, its own rule is used, because other rules are better only on the layers from
        which they were built. Raises StudyError if no rule is correct.
        """
        correct = {one.rule: one for one in tried if one.outcome == Outcome.CORRECT}
        if not correct:
            trial = self.known[self.dispatcher(tried[0].rule).config()]
            raise StudyError(
                f"{self.run_of.study.shown}: no dispatcher is correct: {trial.outcome} {trial.reason}: {trial.message}"
            )
        eligible = [DEFAULT] if self.plan.rule == DEFAULT and DEFAULT in correct else list(correct)
        return correct[simplest(self.costs, eligible, within_us)]

    def _kernels(self) -> tuple[PortfolioKernel, ...]:
        """Return the plan's kernels and the default, each with its predicate."""
        problems = [self.matrix.layers[row].problem for row in self.rows]
        columns = (*self.plan.kernels, self.matrix.default)
        return tuple(
            replace(_portfolio_kernel(self.run_of, problems, name, self.matrix.configs[column]), relative_times=times)
            for name, column, times in zip(self.plan.names, columns, self.plan.relative_times, strict=True)
        )

    def _compiled(self, rule: Rule) -> Future[Binary] | None:
        """Start compiling a rule, or return None if its trial is known or this device doesn't compile."""
        dispatcher, evaluator = self.dispatcher(rule), self.run_of.evaluator
        if not isinstance(evaluator, Chooser) or dispatcher.config() in self.known:
            return None
        return evaluator.build(dispatch_program(dispatcher))

    def _try(self, rule: Rule, proposed_by: str, binary: Future[Binary] | None) -> Tried:
        """Return a rule's stored trial, or verify the rule and store a new one."""
        config = self.dispatcher(rule).config()
        total_us = self._total_us(rule, self.rows)
        trial = self.known.get(config)
        if trial is None:
            trial = Trial(self.next_number, config, Outcome.CORRECT)
            try:
                self._verify(rule, binary)
            except Rejected as rejected:
                trial = rejected_trial(trial, rejected)
            time_us = total_us if trial.outcome == Outcome.CORRECT else None
            self.run_of.store.dispatchers.add_trial(self.scope, trial, time_us, proposed_by=proposed_by)
            self.known[config] = trial
            self.next_number += 1
            self.evaluated += 1
        held_out_us = self._total_us(rule, self.held) if self.held else None
        return Tried(rule, total_us, held_out_us, trial.outcome, trial.reason, trial.number, proposed_by)

    def _verify(self, rule: Rule, binary: Future[Binary] | None) -> None:
        """Compare a dispatcher's choices, and the compiled dispatcher's, with each layer's verified trials.

        Raises Rejected with the reason `unverified` for a kernel that wasn't verified on its layer, `wrong_choice`, or
        the compiler's reason.
        """
        dispatcher, layers = self.dispatcher(rule), [self.matrix.layers[row] for row in self.rows]
        kernels = [dispatcher.choose(layer.problem).kernel for layer in layers]
        positions = [-1 if kernel is None else self.kernels.index(kernel) for kernel in kernels]
        serving = chosen(self.matrix, self.rows, replace(self.plan, rule=rule))
        columns = (*self.plan.kernels, self.matrix.default)
        for layer, position, config in zip(layers, positions, serving, strict=True):
            if (columns[position] if position >= 0 else -1) != config:
                name = self.kernels[position].name if position >= 0 else "nothing"
                message = f"chooses {name} for {layer.name}, a kernel that was not verified on it"
                raise Rejected(Outcome.WRONG_RESULT, "unverified", message)
        if binary is not None:
            _check_choices(self.run_of, dispatcher, binary.result(), layers)

    def _total_us(self, rule: Rule, rows: Sequence[int]) -> float:
        """Return the total time of some layers with a rule's kernels in microseconds, weighted by count."""
        here = list(rows)
        serving = np.full(len(self.matrix.layers), -1, dtype=np.int64)
        serving[here] = chosen(self.matrix, here, replace(self.plan, rule=rule))
        return float((lost_us(self.matrix, serving) + self.matrix.weights * self.matrix.best_us)[here].sum())


def _portfolio_kernel(run: Run, problems: Sequence[Problem], name: str, config: Config) -> PortfolioKernel:
    """Make one of a dispatcher's kernels, with a predicate for problems such as these."""
    study = run.study
    classes = {problem.dtype: study.admitted(problem) for problem in problems}
    admitted = classes.pop(problems[0].dtype)
    admission = Admission(admitted, study.workspace_limit_bytes, prune=study.prune, by_dtype=classes)
    bound = BoundTemplate(run.templates[config.template], problems[0], run.evaluator.info, admission)
    return PortfolioKernel(name, config, predicate(bound, config))


def _check_choices(run: Run, dispatcher: Dispatcher, binary: Binary, layers: Sequence[Layer]) -> None:
    """Compare a compiled dispatcher's choices for some layers with the rule's. Raises Rejected: `wrong_choice`."""
    evaluator = run.evaluator
    assert isinstance(evaluator, Chooser)  # noqa: S101 - it compiled the dispatcher
    table = tuple(table_row(layer.problem) for layer in layers)
    names = {-1: "nothing", **dict(enumerate(kernel.name for kernel in dispatcher.all_kernels))}
    for layer, answer in zip(layers, evaluator.choices(ChoicesRequest(binary, table)), strict=True):
        kernel = dispatcher.choose(layer.problem).kernel
        expected = "nothing" if kernel is None else kernel.name
        if names.get(answer) != expected:
            message = f"chooses {names.get(answer, answer)} for {layer.name}, its rule {expected}"
            raise Rejected(Outcome.WRONG_RESULT, "wrong_choice", message)

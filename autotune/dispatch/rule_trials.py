"""matrix -> dispatch: try rules, each as a trial of the set of layers: compile, run for every layer's choice, store.

The kernels that a rule chooses were verified and timed on the layers as trials of their own, so a rule's time is the
sum of these times, weighted by count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np

from autotune.compilation.compile import Binary
from autotune.dispatch.cells import Run
from autotune.dispatch.dispatcher import DEFAULT_FIRST, Dispatcher, PortfolioKernel, Rule
from autotune.dispatch.header import DispatchTemplate, dispatch_program, table_row
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

EXACT = "exact"
"""`proposed_by` of the rules that lose the least time according to the matrix."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A rule that was tried, and its result."""

    rule: Rule
    total_us: float
    """total over the layers it was built from, weighted by count"""
    held_out_us: float | None
    """total over the held-out layers; None if there are none"""
    outcome: Outcome
    reason: str
    number: int
    proposed_by: str


@dataclass(frozen=True, slots=True)
class _PendingRule:
    """A rule that is being tried."""

    rule: Rule
    proposed_by: str
    dispatcher: Dispatcher
    binary: Future[Binary] | None
    """None: its trial is known, or nothing is compiled on this device"""


class RuleTrials:
    """Tries rules for a portfolio."""

    def __init__(
        self,
        run: Run,
        template: DispatchTemplate,
        matrix: Matrix,
        rows: Sequence[int],
        plan: Plan,
        scope: TargetScope,
        held: Sequence[int] = (),
    ) -> None:
        self.run_of, self.template, self.matrix, self.rows, self.plan = run, template, matrix, list(rows), plan
        self.scope, self.held = scope, list(held)
        self.costs = costs_of(matrix, plan)
        self.kernels = self._kernels()
        self.known = dict(run.store.dispatchers.trials(scope))
        self.next_number = run.store.trials.next_number(scope)
        self.evaluated = 0
        self.compiles = isinstance(run.evaluator, Chooser)

    def dispatcher(self, rule: Rule) -> Dispatcher:
        """The record of a rule."""
        known = tuple(map(tuple, self.matrix.values[list(self.plan.known)].tolist()))
        return Dispatcher(self.plan.properties, self.kernels[:-1], self.kernels[-1], rule, known)

    def run(self, named: Mapping[Rule, str]) -> list[Tried]:
        """Try the named rules, that of the plan, and the best one with at most one threshold."""
        exact = dict.fromkeys([self.plan.rule, best_rule(self.costs)], EXACT)
        begun = [self._begin(rule, by) for rule, by in {**exact, **named}.items()]
        return [self._finish(one) for one in begun]

    def decide(self, tried: Sequence[Tried], within_us: float) -> Tried:
        """The simplest correct rule that loses at most `within_us` relative to the best one.

        If the plan puts the default first, its own rule is used, because the others are better only on the layers that
        they were built from. Raises StudyError if no rule is correct.
        """
        correct = {one.rule: one for one in tried if one.outcome == Outcome.CORRECT}
        if not correct:
            trial = self.known[self.dispatcher(tried[0].rule).config()]
            raise StudyError(
                f"{self.run_of.study.shown}: no dispatcher is correct: {trial.outcome} {trial.reason}: {trial.message}"
            )
        eligible = [DEFAULT_FIRST] if self.plan.rule == DEFAULT_FIRST and DEFAULT_FIRST in correct else list(correct)
        return correct[simplest(self.costs, eligible, within_us)]

    def _kernels(self) -> tuple[PortfolioKernel, ...]:
        """The plan's kernels and the default, each with its predicate."""
        problems = [self.matrix.layers[row].problem for row in self.rows]
        columns = (*self.plan.kernels, self.matrix.default)
        return tuple(
            replace(portfolio_kernel(self.run_of, problems, name, self.matrix.configs[column]), relative_times=times)
            for name, column, times in zip(self.plan.names, columns, self.plan.relative_times, strict=True)
        )

    def _begin(self, rule: Rule, proposed_by: str) -> _PendingRule:
        """Start compiling a rule, unless its trial is known."""
        dispatcher, evaluator = self.dispatcher(rule), self.run_of.evaluator
        binary = None
        if isinstance(evaluator, Chooser) and dispatcher.config() not in self.known:
            binary = evaluator.build(dispatch_program(self.template, dispatcher))
        return _PendingRule(rule, proposed_by, dispatcher, binary)

    def _finish(self, pending: _PendingRule) -> Tried:
        """A rule's trial: the stored one, or else a new one that is verified and stored."""
        config = pending.dispatcher.config()
        total_us = self._total_us(pending.rule, self.rows)
        trial = self.known.get(config)
        if trial is None:
            trial = Trial(self.next_number, config, Outcome.CORRECT)
            try:
                self._verify(pending)
            except Rejected as rejected:
                outcome = Outcome(rejected.outcome)
                trial = replace(trial, outcome=outcome, reason=rejected.reason, message=rejected.message)
            time_us = total_us if trial.outcome == Outcome.CORRECT else None
            self.run_of.store.dispatchers.add_trial(self.scope, trial, time_us, proposed_by=pending.proposed_by)
            self.known[config] = trial
            self.next_number += 1
            self.evaluated += 1
        held_out_us = self._total_us(pending.rule, self.held) if self.held else None
        return Tried(
            pending.rule, total_us, held_out_us, trial.outcome, trial.reason, trial.number, pending.proposed_by
        )

    def _verify(self, pending: _PendingRule) -> None:
        """Compare a dispatcher's choices, and those of its compiled form, with the verified trials of each layer.

        Raises Rejected: `unverified` for a choice that is not correct on its layer, `wrong_choice`, or the compiler's
        reason.
        """
        problems = [self.matrix.layers[row].problem for row in self.rows]
        kernels = [pending.dispatcher.choose(problem).kernel for problem in problems]
        positions = [-1 if kernel is None else self.kernels.index(kernel) for kernel in kernels]
        serving = chosen(self.matrix, self.rows, replace(self.plan, rule=pending.rule))
        columns = (*self.plan.kernels, self.matrix.default)
        for row, position, config in zip(self.rows, positions, serving, strict=True):
            if (columns[position] if position >= 0 else -1) != config:
                layer = self.matrix.layers[row].name
                message = f"chooses {self._name(position)} for {layer}, which is not what was verified for it"
                raise Rejected(Outcome.WRONG_RESULT, "unverified", message)
        if pending.binary is not None:
            check_choices(
                self.run_of, pending.dispatcher, pending.binary.result(), [self.matrix.layers[row] for row in self.rows]
            )

    def _name(self, position: int) -> str:
        return self.kernels[position].name if 0 <= position < len(self.kernels) else "nothing"

    def _total_us(self, rule: Rule, rows: Sequence[int]) -> float:
        """The total time of some layers with a rule's kernels, in microseconds, weighted by count."""
        here = list(rows)
        serving = np.full(len(self.matrix.layers), -1, dtype=np.int64)
        serving[here] = chosen(self.matrix, here, replace(self.plan, rule=rule))
        return float((lost_us(self.matrix, serving) + self.matrix.weights * self.matrix.best_us)[here].sum())


def portfolio_kernel(run: Run, problems: Sequence[Problem], name: str, config: Config) -> PortfolioKernel:
    """A kernel of a dispatcher for some problems, with its predicate."""
    study = run.study
    classes = {problem.dtype: study.admitted(problem) for problem in problems}
    admitted = classes.pop(problems[0].dtype)
    admission = Admission(admitted, study.workspace_limit_bytes, prune=study.prune, by_dtype=classes)
    bound = BoundTemplate(run.templates[config.template], problems[0], run.evaluator.info, admission)
    return PortfolioKernel(name, config, predicate(bound, config))


def check_choices(run: Run, dispatcher: Dispatcher, binary: Binary, layers: Sequence[Layer]) -> None:
    """Compare the choices of a compiled dispatcher for some layers with its rule. Raises Rejected: `wrong_choice`."""
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

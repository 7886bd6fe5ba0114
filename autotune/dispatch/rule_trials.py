"""matrix -> dispatch: rules tried, each a trial of the set of layers: compiled, asked for every layer's choice, kept.

What a rule chooses was verified and timed on the layer as a trial of its own, so a rule's time is the sum of these,
each layer's as often as the network runs it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np

from autotune.compilation.compile import Binary
from autotune.dispatch.dispatcher import DEFAULT_FIRST, Dispatcher, PortfolioKernel, Rule
from autotune.dispatch.header import DispatchTemplate, dispatch_program, table_row
from autotune.dispatch.matrix import Run
from autotune.dispatch.plan import Plan, chosen, costs_of
from autotune.dispatch.portfolio import Matrix, lost_us
from autotune.dispatch.predicate import predicate
from autotune.dispatch.rule_space import RuleSpace
from autotune.dispatch.thresholds import best_tree, simplest
from autotune.errors import Rejected, StudyError
from autotune.evaluation.evaluator import Chooser
from autotune.family.space import Admission, BoundTemplate
from autotune.measurement.choices import ChoicesRequest
from autotune.search import ListedDesign, Search
from autotune.store import SubjectScope
from autotune.trial import Config, Outcome, Timing, Trial

EXACT = "exact"
"""What proposed the rules that lose the fewest milliseconds by the matrix."""
DEPTH = 3
"""Thresholds in a row, at most, of the tree that is tried beside a single one."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A rule that was tried, and what became of it."""

    rule: Rule
    total_us: float
    """of all layers, weighted"""
    outcome: Outcome
    reason: str
    number: int
    proposed_by: str


@dataclass(frozen=True, slots=True)
class _Asked:
    """A rule under way."""

    rule: Rule
    proposed_by: str
    made: Dispatcher
    binary: Future[Binary] | None
    """None: its trial is known, or nothing compiles here"""
    point: tuple[int, Config] | None = None
    """the search's number and config"""


class RuleTrials:
    """Tries rules for a portfolio."""

    def __init__(
        self,
        run: Run,
        template: DispatchTemplate,
        matrix: Matrix,
        rows: Sequence[int],
        plan: Plan,
        scope: SubjectScope,
    ) -> None:
        self.run_of, self.template, self.matrix, self.rows, self.plan = run, template, matrix, list(rows), plan
        self.scope = scope
        self.costs = costs_of(matrix, plan)
        self.space = RuleSpace(self.costs)
        self.kernels = self._kernels()
        self.known = dict(run.store.dispatchers.trials(scope))
        self.next_number = run.store.trials.next_number(scope)
        self.evaluated = 0
        self.compiles = isinstance(run.evaluator, Chooser)

    def dispatcher(self, rule: Rule) -> Dispatcher:
        """The record of a rule."""
        known = tuple(map(tuple, self.matrix.values[list(self.plan.known)].tolist()))
        return Dispatcher(self.plan.properties, self.kernels[:-1], self.kernels[-1], rule, known)

    def run(self, trials: int, named: Mapping[Rule, str]) -> list[Tried]:
        """Try the rules that have a name, the plan's, the best threshold and tree, and what the search proposes.

        The search proposes `trials` rules of at most one threshold; a space no larger than that is walked whole.
        """
        exact = dict.fromkeys([self.plan.rule, *(best_tree(self.costs, depth) for depth in (1, DEPTH))], EXACT)
        first = {**exact, **named}
        points = {point: by for rule, by in first.items() if (point := self.space.point(rule)) is not None}
        study = self.run_of.study
        designs = [
            ListedDesign(by, [point for point, word in points.items() if word == by])
            for by in dict.fromkeys(points.values())
        ]
        search = Search(
            [self.space], sampler=study.sampler, seed=study.seed, budget=trials, history=(), designs=designs
        )
        waiting = deque(self._begin(rule, by) for rule, by in first.items())
        tried: dict[Rule, Tried] = {}
        asked = 0
        while True:
            while len(waiting) < self.run_of.evaluator.ahead and asked < trials and not self.run_of.stopping():
                point = search.ask(asked)
                if point is None:
                    break
                waiting.append(self._begin(self.space.rule(point), search.proposed_by(point), (asked, point)))
                asked += 1
            if not waiting:
                return list(tried.values())
            one = waiting.popleft()
            tried[one.rule] = tried.get(one.rule) or self._finish(one)
            if one.point is not None:
                search.tell(_told(*one.point, tried[one.rule]))

    def decide(self, tried: Sequence[Tried], within_us: float) -> Tried:
        """The simplest of the correct rules that lose no more than `within_us` over the best of them.

        Where in the plan the default comes first its rule stays: the others are the better only on the layers that they
        were made from. Raises StudyError when none is correct.
        """
        correct = {one.rule: one for one in tried if one.outcome == Outcome.CORRECT}
        if not correct:
            trial = self.known[self.dispatcher(tried[0].rule).config()]
            raise StudyError(
                f"{self.run_of.study.path or self.run_of.study.name}: no dispatcher is correct: "
                f"{trial.outcome} {trial.reason}: {trial.message}"
            )
        eligible = [DEFAULT_FIRST] if self.plan.rule == DEFAULT_FIRST and DEFAULT_FIRST in correct else list(correct)
        return correct[simplest(self.costs, eligible, within_us)]

    def _kernels(self) -> tuple[PortfolioKernel, ...]:
        """The plan's kernels and the default, each with its predicate."""
        study, info = self.run_of.study, self.run_of.evaluator.info
        problems = [self.matrix.layers[row].problem for row in self.rows]
        classes = {problem.dtype: study.admitted(problem) for problem in problems}
        (problem, *_), admitted = problems, classes.pop(problems[0].dtype)
        admission = Admission(admitted, study.workspace_limit_bytes, prune=study.prune, by_dtype=classes)
        found = []
        columns = (*self.plan.kernels, self.matrix.default)
        for name, position, relative_times in zip(self.plan.names, columns, self.plan.relative_times, strict=True):
            config = self.matrix.configs[position]
            bound = BoundTemplate(self.run_of.templates[config.template], problem, info, admission)
            found.append(PortfolioKernel(name, config, predicate(bound, config), relative_times))
        return tuple(found)

    def _begin(self, rule: Rule, proposed_by: str, point: tuple[int, Config] | None = None) -> _Asked:
        """Start compiling a rule, unless its trial is known."""
        made, evaluator = self.dispatcher(rule), self.run_of.evaluator
        binary = None
        if isinstance(evaluator, Chooser) and made.config() not in self.known:
            binary = evaluator.build(dispatch_program(self.template, made))
        return _Asked(rule, proposed_by, made, binary, point)

    def _finish(self, asked: _Asked) -> Tried:
        """A rule's trial: what is stored, else verified and stored."""
        config = asked.made.config()
        total_us = self._total_us(asked.rule)
        trial = self.known.get(config)
        if trial is None:
            trial = Trial(self.next_number, config, Outcome.CORRECT)
            try:
                self._verify(asked)
            except Rejected as rejected:
                outcome = Outcome(rejected.outcome)
                trial = replace(trial, outcome=outcome, reason=rejected.reason, message=rejected.message)
            time_us = total_us if trial.outcome == Outcome.CORRECT else None
            self.run_of.store.dispatchers.add_trial(self.scope, trial, time_us, proposed_by=asked.proposed_by)
            self.known[config] = trial
            self.next_number += 1
            self.evaluated += 1
        return Tried(asked.rule, total_us, trial.outcome, trial.reason, trial.number, asked.proposed_by)

    def _verify(self, asked: _Asked) -> None:
        """Compare a dispatcher's choices with what was verified on each layer, then those of its compiled form.

        Raises Rejected: `unverified` for a choice that is not correct on its layer, `wrong_choice`, or the compiler's.
        """
        problems = [self.matrix.layers[row].problem for row in self.rows]
        kernels = [asked.made.choose(problem).kernel for problem in problems]
        positions = [-1 if kernel is None else self.kernels.index(kernel) for kernel in kernels]
        serving = chosen(self.matrix, self.rows, replace(self.plan, rule=asked.rule))
        columns = (*self.plan.kernels, self.matrix.default)
        for row, position, config in zip(self.rows, positions, serving, strict=True):
            if (columns[position] if position >= 0 else -1) != config:
                layer = self.matrix.layers[row].name
                message = f"chooses {self._name(position)} for {layer}, which is not what was verified for it"
                raise Rejected(Outcome.CORRECTNESS, "unverified", message)
        evaluator = self.run_of.evaluator
        if not isinstance(evaluator, Chooser) or asked.binary is None:
            return
        table = tuple(table_row(problem) for problem in problems)
        answers = evaluator.choices(ChoicesRequest(asked.binary.result(), table))
        for row, position, answer in zip(self.rows, positions, answers, strict=True):
            if position != answer:
                layer = self.matrix.layers[row].name
                message = f"chooses {self._name(answer)} for {layer}, its rule {self._name(position)}"
                raise Rejected(Outcome.CORRECTNESS, "wrong_choice", message)

    def _name(self, position: int) -> str:
        return self.kernels[position].name if 0 <= position < len(self.kernels) else "nothing"

    def _total_us(self, rule: Rule) -> float:
        """Microseconds of all layers with the kernels that a rule chooses, weighted."""
        serving = np.full(len(self.matrix.layers), -1, dtype=np.int64)
        serving[self.rows] = chosen(self.matrix, self.rows, replace(self.plan, rule=rule))
        lost = lost_us(self.matrix, serving)[self.rows]
        return float((lost + self.matrix.weights[self.rows] * self.matrix.best_us[self.rows]).sum())


def _told(number: int, point: Config, tried: Tried) -> Trial:
    """What the search is told of a rule."""
    us = tried.total_us
    timing = Timing((us,), us, us, us, "") if tried.outcome == Outcome.CORRECT else None
    return Trial(number, point, tried.outcome, timing=timing)

"""`check`: verify a family on every kind of layer that it supports."""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import click

from autotune.api.device_names import binary_cache
from autotune.api.sanitizers import compute_sanitizer
from autotune.api.study_names import study_named
from autotune.checking.architectures import Architectures, device_of
from autotune.checking.cases import CasePlan
from autotune.checking.check import CheckRow, FamilyCheck, Stopwatch, checker_of, hint_at_reference
from autotune.checking.coverage import Coverage, coverage, in_common
from autotune.checking.dependence import doubtful_declarations, lone_scratch, loose_tolerance
from autotune.checking.problem_features import problem_features
from autotune.checking.sanitize import ALL_TOOLS, HOST_CHECK
from autotune.checking.sanitized import sampled, sanitized, summary
from autotune.cli.options import DATABASE, DIRECTORIES, JOBS, OF_STUDY, NumberRange, family_names, run_on
from autotune.cli.output import note
from autotune.cli.progress import counting
from autotune.cli.run import open_evaluator
from autotune.cli.tables import format_options, say, show
from autotune.cli.templates import find_family
from autotune.columns import Cells, Items, field_cells, key_columns
from autotune.compilation.toolchain import find_nvcc
from autotune.devices.host_machine import tree_seconds, usable_cores
from autotune.errors import AutotuneError, DeviceError, ToolchainError
from autotune.escape import counted
from autotune.evaluation.evaluator import DeviceEvaluator, Evaluator
from autotune.family.space import BoundTemplate
from autotune.family.template import KernelTemplate
from autotune.problem import Layer, Problem, by
from autotune.study import Study
from autotune.study_writer import study_toml
from autotune.trial import Config, Outcome
from autotune.workers.device_worker import Deadlines

_DEADLINES = Deadlines(compile_s=300.0, evaluate_s=300.0)  # long, because a busy machine compiles slowly
_SHARE = 0.8  # share of the time limit after which no further case begins
_SHOWN_PAIRS = 3
_SEEDS = 10_000  # each check draws one of these seeds, so that every check tests other sizes

_COLUMNS = key_columns(
    *("problem", "config", "n", "accuracy", "outcome", "reason", "device", "error_over_bound", "message")
)


def _cells(row: CheckRow) -> Cells:
    return {
        **field_cells(row),
        "problem": str(row.problem),
        "config": row.source.config,
        "n": Items(tuple(size[0] if len(size) == 1 else by(size) for size in row.sizes)),
        "accuracy": row.source.accuracy,
        "error_over_bound": row.error.over_bound if row.error else None,
    }


@click.command()
@click.argument("template", metavar="TEMPLATE", shell_complete=family_names)
@DIRECTORIES
@run_on("cuda:N, host, or host:check for sanitizers and shuffled thread order")
@OF_STUDY
@DATABASE
@click.option(
    "--seconds",
    type=NumberRange(min=1),
    default=30,
    show_default=True,
    help="Time limit in seconds of CPU time or wall-clock time, whichever is shorter.",
)
@click.option(
    "--full", is_flag=True, help="Test all pairs, and compile each config for all architectures, without a time limit."
)
@click.option("--configs", type=click.IntRange(min=1), help="Maximum number of configs.")
@click.option("--gaps", is_flag=True, help="List the other sizes, and every pair of values that was not tested.")
@click.option("--seed", type=click.IntRange(min=0), help="Random seed for choosing configs and sizes.")
@JOBS
@format_options
def check(
    template: str,
    directories: tuple[Path, ...],
    device: str | None,
    study: str | None,
    db: str,
    seconds: float,
    full: bool,
    configs: int | None,
    gaps: bool,
    seed: int | None,
    jobs: int | None,
    style: str | None,
) -> None:
    """Verify a family on every kind of layer it supports.

    TEMPLATE is the name or the file of a family.

    autotune derives problems from the family's header: layouts, types, epilogues, strides, paddings and more, with
    several numbers of images. It chooses configs and problems so that every pair of their values occurs, and reports
    the pairs that were not tested, and why.
    """
    took = Stopwatch(lambda: tree_seconds(os.getpid()))
    family = find_family(template, directories)
    wanted = None if study is None else study_named(study, db, directories)
    narrowed = None if wanted is None or wanted.space is None else wanted.space.get(family.name)
    jobs = jobs or usable_cores()
    seed = random.SystemRandom().randrange(_SEEDS) if seed is None else seed
    evaluator = open_evaluator(device, jobs, _DEADLINES)
    architectures, no_nvcc = _architectures(jobs, each=full)
    sanitizing = _HostCheck() if evaluator.info.can.cpu and device != HOST_CHECK else None
    try:
        checker_of(evaluator)  # raises now, because deriving problems and configs takes seconds
        plan = CasePlan(family, evaluator.info, layers=wanted.layers if wanted else (), narrowed=narrowed, seed=seed)
        checked = evaluator if device == HOST_CHECK else None
        checking = FamilyCheck(plan, evaluator, architectures, sanitizing.open if sanitizing else lambda: checked)
        found = checking.rows(most=configs, left=lambda: math.inf if full else _SHARE * seconds - took.seconds)
        rows = _counted(family.name, found, most=configs, seconds=None if full else seconds)
    finally:
        for opened in (evaluator, architectures, sanitizing):
            if opened is not None:
                opened.close()
    under_tools = _under_compute_sanitizer(family, evaluator, device, rows, jobs) if evaluator.info.can.gpu else []
    wrong = [row for row in rows if row.outcome != Outcome.CORRECT]
    if style:
        show(map(_cells, rows), _COLUMNS, style)
    reported = [f"Chosen with --seed {seed}", *_coverage_lines(checking, coverage(checking), rows, no_nvcc, every=gaps)]
    reported += doubtful_declarations([subject.bound.problem for subject in checking.plan.subjects])
    reported += lone_scratch(family)
    reported += loose_tolerance([row for row in rows if row.outcome == Outcome.CORRECT])
    reported += [
        f"warning: {family.path}: [supports] holds for {large.bound.problem}, but {large.why_not}"
        for large in checking.large
        if large.limited
    ]
    reported += [f"warning: {family.path}: [supports] holds for {each}" for each in checking.overflows]
    reported += under_tools
    if sanitizing is not None and sanitizing.missing:
        reported.append(f"No config ran on host:check: {sanitizing.missing}")
    elif sanitizing is not None:
        ran = sum(row.device == HOST_CHECK for row in rows)
        reported.append(f"Ran on host:check, under sanitizers: {counted(ran, 'config')} of {len(rows)}")
    for line in (*_failures(checking, rows, wrong), *reported):
        (say if style is None else note)(line)
    verified = [row for row in rows if row.sizes]
    if wrong:
        hint = _hint(family, rows)
        raise AutotuneError(
            f"{family.name}: {len(wrong)} of {len(rows)} configs failed; each kind is shown above{hint}"
        )
    if not verified:
        why = next(iter(checking.refused.values()), "give --seconds more time")
        raise AutotuneError(f"{family.name}: nothing was verified; {why}")
    problems = {row.problem.shape for row in verified}
    runs = sum(len(row.sizes) for row in verified)
    note(
        f"{family.name}: {counted(len(verified), 'config')} on {counted(len(problems), 'problem')} correct, "
        f"{counted(runs, 'run')}"
    )


def _counted(name: str, found: Iterator[CheckRow], most: int | None, seconds: float | None) -> list[CheckRow]:
    """Collect the rows while showing progress."""
    rows: list[CheckRow] = []
    of_time = "" if seconds is None else f", {seconds:g} s in all"
    with counting(name, most) as tell:
        tell(0, f"compiling the first{of_time}")
        for row in found:
            rows.append(row)
            counts = Counter(row.outcome for row in rows)
            tell(len(rows), f"{', '.join(f'{count} {outcome}' for outcome, count in counts.items())}{of_time}")
    return rows


_DIFFERENT = ((Outcome.WRONG_RESULT, "wrong"), (Outcome.WRONG_RESULT, "inexact"))


def _hint(family: KernelTemplate, rows: Sequence[CheckRow]) -> str:
    """Return a hint that the user's own reference may be wrong, if no kernel agrees with it."""
    differ = all((row.outcome, row.reason) in _DIFFERENT for row in rows)
    return hint_at_reference(family.operation) if differ else ""


def _architectures(jobs: int, *, each: bool) -> tuple[Architectures | None, str]:
    """Return the compiler for the toolkit's architectures, or None and the reason why there isn't one."""
    try:
        return Architectures(find_nvcc(), jobs, each=each), ""
    except ToolchainError as error:
        return None, str(error)


class _HostCheck:
    """Opens `host:check` when the first config needs it."""

    def __init__(self) -> None:
        self._evaluator: Evaluator | None = None
        self.missing = ""
        """the reason why `host:check` cannot be opened"""

    def open(self) -> Evaluator | None:
        if self._evaluator is None and not self.missing:
            try:
                self._evaluator = DeviceEvaluator([HOST_CHECK], 1, cache=binary_cache(), deadlines=_DEADLINES)
            except (ToolchainError, DeviceError) as error:
                self.missing = str(error)
        return self._evaluator

    def close(self) -> None:
        if self._evaluator is not None:
            self._evaluator.close()


def _under_compute_sanitizer(
    family: KernelTemplate, evaluator: Evaluator, device: str | None, rows: list[CheckRow], jobs: int
) -> list[str]:
    """Run a sample of a GPU's configs under compute-sanitizer.

    Adds a row for each fault, and returns lines that describe what ran.
    """
    try:
        sanitizer = compute_sanitizer(device or "cuda:0", jobs, ALL_TOOLS)
    except ToolchainError as error:
        return [f"No config ran under compute-sanitizer: {error}"]
    try:
        found = list(sanitized(sanitizer, family, evaluator.info, sampled(rows)))
    finally:
        sanitizer.close()
    rows += [row for row, _ in found if row.outcome != Outcome.CORRECT]
    return summary([verdict for _, verdict in found])


def _failures(checking: FamilyCheck, rows: Sequence[CheckRow], wrong: Sequence[CheckRow]) -> list[str]:
    """Describe one example of each kind of failure, and the values that the failed configs have in common."""
    lines: list[str] = []
    for (outcome, reason), group in groupby(
        sorted(wrong, key=lambda row: (row.outcome, row.reason)), lambda row: (row.outcome, row.reason)
    ):
        failed = list(group)
        on_check = " --device host:check" if failed[0].device == HOST_CHECK else ""
        where = ", on host:check" if all(row.device == HOST_CHECK for row in failed) else ""
        lines += [f"{outcome}/{reason}: {len(failed)} of {len(rows)} configs{where}", f"  {failed[0].message}"]
        if common := in_common(checking, rows, failed):
            lines += [
                "  All of these configs, but almost no others, have",
                *(f"    {words}" for words in common[:5]),
            ]
        name = checking.plan.template.name
        if failed[0].problem in (large.bound.problem for large in checking.large):
            lines += [f"  It is {failed[0].problem}: autotune check {name} --seed {checking.plan.seed}", ""]
            continue
        again = f"autotune check {name} --study failed.toml{on_check}"
        lines += [f"  To reproduce it, save this as failed.toml and run: {again}", ""]
        lines += [f"    {line}" for line in reproduction(failed[0].problem, failed[0].source.config)]
        lines.append("")
    return lines


def reproduction(problem: Problem, config: Config) -> list[str]:
    """Return the lines of a study file with one layer and one config."""
    space = {name: (value,) for name, value in config.pairs}
    return study_toml(Study("failed", (Layer("failed", problem),), space={config.template: space})).splitlines()


def _admits(plan: CasePlan, arch: int) -> bool:
    """Return whether the family supports an architecture."""
    bound = BoundTemplate(plan.template, plan.subjects[0].bound.problem, device_of(arch))
    return all(bound.bind(condition.holds).integer({}) for condition in plan.template.arch)


def _sizes(checking: FamilyCheck, rows: Sequence[CheckRow], *, every: bool) -> list[str]:
    """Describe the run-time sizes at which configs ran, and any grid axes that never had a second block."""
    correct = [row for row in rows if row.outcome == Outcome.CORRECT]
    cases = [row for row in correct if row.factors]
    if not cases:
        return []
    template = checking.plan.template
    lines = []
    for place, name in enumerate(template.operation.runtime):
        own = {row.problem.runtime_sizes[place] for row in correct}
        sizes = {each[place] for row in cases for each in row.sizes}
        common = sorted(sizes & {1, *own, *problem_features(template.operation).runtime})
        line = f"Run at {name} = {', '.join(map(str, common))}"
        if larger := sizes - set(common):
            line += f", and for several blocks at {min(larger)} to {max(larger)}"
        lines.append(line)
    if others := dict.fromkeys(f"  {row.problem}" for row in correct if not row.factors):
        lines.append(f"Run at other sizes: {counted(len(others), 'problem')}{'' if every else '; --gaps lists them'}")
        lines += others if every else ()
    entries = dict.fromkeys(stage.entry for stage in template.stages)
    single = [
        f"{axis}{f' of {entry}' if len(entries) > 1 else ''}"
        for entry in entries
        for number, axis in enumerate("xyz")
        if checking.blocks.get((entry, number)) == 1
        and any(stage.grid[number].text != "1" for stage in template.stages if stage.entry == entry)
    ]
    return [*lines, *([f"  only one block along axis {', '.join(single)} of the grid"] if single else [])]


def _coverage_lines(
    checking: FamilyCheck, covered: Coverage, rows: Sequence[CheckRow], no_nvcc: str, *, every: bool
) -> list[str]:
    """Describe which pairs were tested and which weren't."""
    lines = ["Covered pairs of"]
    shares = (
        ("features of the problem", covered.features),
        ("parameter values", covered.params),
        ("a feature and a parameter value", covered.mixed),
    )
    lines += [f"  {what + ':':33s} {share}" for what, share in shares if share.feasible]
    lines += _sizes(checking, rows, every=every)
    if checking.compiled:
        counts = [f"sm_{arch} {count}" for arch, count in checking.compiled.items() if count]
        lines.append(f"Configs compiled with nvcc for: {', '.join(counts) or 'no architecture, none was reached'}")
        left = [arch for arch, count in checking.compiled.items() if not count]
        admitted = [arch for arch in left if _admits(checking.plan, arch)]
        for archs, why in (
            ([arch for arch in left if arch not in admitted], "refused by the family's `arch`"),
            (admitted, "a rule rejected the chosen configs, or none was reached"),
        ):
            if archs:
                lines.append(f"  none for {', '.join(f'sm_{arch}' for arch in archs)}: {why}")
    else:
        lines.append(f"Not compiled for other architectures: {no_nvcc}")
    lines.append("Not exercised:" if covered.gaps else "Not exercised: nothing")
    for gap in covered.gaps:
        lines.append(f"  {gap.what}: {gap.why}")
        shown = gap.pairs if every else gap.pairs[:_SHOWN_PAIRS] if len(gap.pairs) <= _SHOWN_PAIRS else ()
        lines += [f"    {pair}" for pair in shown]
    return lines

"""`check` finds errors in all branches that a family claims to support, and names branches that it did not reach."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from autotune.checking.cases import CasePlan
from autotune.checking.check import CheckRow, FamilyCheck
from autotune.checking.coverage import coverage, in_common
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_template
from autotune.operation.registry import CONV2D, operation
from autotune.problem import Conv2dProblem, Layer
from autotune.resources import shipped
from autotune.trial import Outcome
from tests.fork_server import ForkServer
from tests.injected_faults import DATA
from tests.long_run import every, long_run
from tests.unit.tiny import changed

pytestmark = pytest.mark.cxx

GOOD = DATA / "everything.cu.j2"
CASES = 24  # more than the pairs of features and parameters of any fault below need
HALF = 8  # as many as are needed to reach a value that half of the cases have
FEW = 2
WIDE = "const long long at = (static_cast<long long>(blockIdx.x) * TURNS + turn) * BLOCK + threadIdx.x;"

FAULTS: Mapping[str, tuple[str, str, str]] = {
    "bias": ("        sum += bias[k];\n", "        sum += bias[k / 2];\n", ""),
    "nhwc": ("q = at / K % Q, p = at / (K * Q) % P;", "q = at / K % Q, p = (at / (K * Q) + 1) % P;", "layout=nhwc"),
    "relu": ("${activation}(sum)", "${'identity' if activation == 'relu' else activation}(sum)", "activation=relu"),
    "residual": ("        sum += z[at];\n", "        sum += z[0];\n", "terms=bias_add"),
    "stride": ("p * STRIDE_H - PAD_H", "p * STRIDE_W - PAD_H", ""),
    "pair": ("y[at] = sum;", "y[at] = BLOCK == 96 && TURNS == 2 ? 0.0f : sum;", "block=96 and turns=2"),
    "padding": ("if (column < 0 || column >= W) continue;", "if (column >= W) continue;", ""),
    "dilation": ("s * DILATION_W", "s * DILATION_H", "dilation=2x3"),
    "groups": ("k / K_GROUP * C_GROUP + c", "k % GROUPS * C_GROUP + c", ""),
    "one_image": ("y[at] = sum;", "y[at] = n == 1 ? 0.0f : sum;", ""),
    "many_images": ("y[at] = sum;", "y[at] = image == 3 ? 0.0f : sum;", ""),
    "sixteen_images": ("y[at] = sum;", "y[at] = n % 16 ? sum : 0.0f;", ""),
    "hundred_images": ("y[at] = sum;", "y[at] = image == 100 ? 0.0f : sum;", ""),
}
"""An edit of the family, and the common feature of its failures, if that is a value or a pair of values."""


def family(folder: Path, old: str = "", new: str = "") -> KernelTemplate:
    """The family that supports everything, with an edit."""
    text = GOOD.read_text(encoding="utf-8")
    assert not old or old in text
    path = folder / GOOD.name
    path.write_text(text.replace(old, new) if old else text, encoding="utf-8")
    return load_template(path)


def checked(
    template: KernelTemplate, host: DeviceEvaluator, cases: int
) -> tuple[FamilyCheck, list[CheckRow], dict[str, str]]:
    """A check of this many cases, all of which are right: its rows, and the reasons for the cases that it left out."""
    checking = FamilyCheck(CasePlan(template, host.info), host)
    rows = list(checking.rows(most=cases))
    assert [row.message for row in rows if row.outcome != Outcome.CORRECT] == []
    assert len(rows) == cases
    assert all({(1,), (2,), (3,), (9,)} <= set(row.sizes) for row in rows)
    return checking, rows, {gap.what: gap.why for gap in coverage(checking).gaps}


def test_correct_family_passes_and_what_was_left_is_said(tmp_path: Path, host: DeviceEvaluator) -> None:
    checking, rows, gaps = checked(family(tmp_path), host, FEW)
    assert {row.problem.values["layout"] for row in rows} == {"nchw", "nhwc"}
    assert {row.problem.values["groups"] == 1 for row in rows} == {True, False}
    assert gaps["dtype f16, bf16"] == "`supports` refuses it"
    assert any(what.startswith("more than 2147483648 elements") for what in gaps)
    found = coverage(checking).features
    assert gaps[f"{found.feasible - found.covered} pairs of features"] == "not reached; --full tests all"


@pytest.mark.long
@pytest.mark.parametrize("counted_in", ["long long", "int"])
def test_blocks_of_a_large_launch_are_run(counted_in: str, tmp_path: Path, host: DeviceEvaluator) -> None:
    """On a CPU without enough memory for it."""
    narrow = "const int at = (static_cast<int>(blockIdx.x) * TURNS + turn) * BLOCK + threadIdx.x;"
    template = family(tmp_path, *((WIDE, narrow) if counted_in == "int" else ()))
    sanitizing = DeviceEvaluator(["host:check"], 1)
    try:
        rows = list(FamilyCheck(CasePlan(template, host.info), host, sanitizing=lambda: sanitizing).rows(most=0))
    finally:
        sanitizing.close()
    assert {row.problem.values["layout"] for row in rows} == {"nchw", "nhwc"}
    assert all(row.problem.array("y").elements > 1 << 32 for row in rows)
    reasons = {row.reason: row.message for row in rows}
    assert list(reasons) == ([""] if counted_in == "long long" else ["undefined"])
    assert counted_in == "long long" or "signed integer overflow" in reasons["undefined"]


def test_an_offset_into_a_workspace_larger_than_the_arrays_is_found_if_it_overflows(
    tmp_path: Path, host: DeviceEvaluator
) -> None:
    """In the config with the largest workspace, not in the first one."""
    shutil.copytree(shipped("templates") / "norm", tmp_path / "norm")
    path = tmp_path / "norm" / "norm_groups.cu.j2"
    text = path.read_text(encoding="utf-8")
    wide, narrow = "return (image * GROUPS", "return (static_cast<int>(image) * GROUPS"
    assert wide in text
    path.write_text(text.replace(wide, narrow), encoding="utf-8")
    sanitizing = DeviceEvaluator(["host:check"], 1)
    try:
        (row,) = FamilyCheck(CasePlan(load_template(path), host.info), host, sanitizing=lambda: sanitizing).rows(most=0)
    finally:
        sanitizing.close()
    assert "signed integer overflow" in row.message


def test_one_config_is_verified_however_late_it_is(tmp_path: Path, host: DeviceEvaluator) -> None:
    """On a busy machine, problems and configs may take all of the time."""
    checking = FamilyCheck(CasePlan(family(tmp_path), host.info), host)
    (row,) = checking.rows(left=lambda: 0.0)
    assert row.outcome == Outcome.CORRECT


@pytest.mark.long
def test_some_cases_have_each_activation_and_most_pairs(tmp_path: Path, host: DeviceEvaluator) -> None:
    checking, rows, _ = checked(family(tmp_path), host, CASES)
    assert {row.problem.names()["activation"] for row in rows} == set(operation(CONV2D).enumerations["activation"])
    assert {row.problem.names()["terms"] for row in rows} == {"none", "bias", "bias_add"}
    found = coverage(checking)
    assert found.params.covered == found.params.feasible
    assert 0.7 * found.features.feasible < found.features.covered < found.features.feasible


@pytest.mark.parametrize("fault", every(len(FAULTS), FAULTS))
def test_broken_branch_is_found(fault: str, tmp_path: Path, host: DeviceEvaluator) -> None:
    old, new, common = FAULTS[fault]
    checking = FamilyCheck(CasePlan(family(tmp_path, old, new), host.info), host)
    rows = []
    for row in checking.rows(most=HALF if common == "layout=nhwc" else CASES):
        rows.append(row)
        if row.outcome != Outcome.CORRECT and not common:
            break
    failed = [row for row in rows if row.outcome != Outcome.CORRECT]
    assert failed
    assert {row.outcome for row in failed} <= {Outcome.WRONG_RESULT, Outcome.RUNTIME}
    if common:
        assert any(words.startswith(common) for words in in_common(checking, rows, failed))
    if fault == "one_image":
        assert all("wrong for n = 1, right for " in row.message for row in failed)


def test_every_feasible_pair_has_a_case_in_a_full_check(tmp_path: Path, host: DeviceEvaluator) -> None:
    plan = CasePlan(family(tmp_path), host.info)
    cases = list(plan.cases())
    for case in cases:
        plan.covering.cover(case.factors)
        case.subject.bound.check(case.config)
    for left, right in ((plan.features, plan.features), (plan.params, plan.params), (plan.features, plan.params)):
        assert plan.covering.open_pairs(left, right, feasible=True) == []
    refused = plan.covering.open_pairs(plan.params, plan.params, feasible=False)
    said = {f"{plan.factors[a].said(x)} {plan.factors[b].said(y)}" for a, x, b, y in refused}
    assert said == {"block=128 turns=3", "block=96 turns=3"}, "128 * 3 and 96 * 3 outputs a block are too many"
    assert len(cases) < 120


@pytest.mark.parametrize(("factor", "right"), [(4, False), (64, True), *long_run((1, False))])
def test_bound_follows_the_algorithm(factor: int, right: bool, tmp_path: Path, host: DeviceEvaluator) -> None:
    template = family(tmp_path, "y[at] = sum;", "y[at] = sum * (1.0f + 1.0f / (1 << 18));")  # 64 roundings, all one way
    path = template.path
    path.write_text(path.read_text().replace("[supports]", f'error_factor = "{factor}"\n\n[supports]'))
    rows = list(FamilyCheck(CasePlan(load_template(path), host.info), host).rows(most=4))
    assert all(row.outcome == Outcome.CORRECT for row in rows) == right


def test_a_wide_bound_keeps_whole_numbers(tmp_path: Path, host: DeviceEvaluator) -> None:
    template = family(tmp_path, "y[at] = sum;", "y[at] = sum * (1.0f + 1.0f / 64);")
    path = template.path
    path.write_text(path.read_text().replace("[supports]", 'error_factor = "32768"\n\n[supports]'))
    (row,) = FamilyCheck(CasePlan(load_template(path), host.info), host).rows(most=1)
    assert (row.outcome, row.reason) == (Outcome.WRONG_RESULT, "inexact")


@pytest.mark.parametrize("use", every(2, ["unset * 0.0f", "fmaxf(unset, 0.0f)"]))
def test_a_variable_without_a_value_is_named(use: str, tmp_path: Path, host: DeviceEvaluator) -> None:
    """Outputs are right with the contents that the host's compiler gives to such variables."""
    template = family(tmp_path, "        y[at] = sum;", f"        float unset;\n        y[at] = sum + {use};")
    (row,) = FamilyCheck(CasePlan(template, host.info), host).rows(most=1)
    assert (row.outcome, row.reason) == (Outcome.WRONG_RESULT, "unwritten")
    assert "that were never set, unset (kernel.cu:" in row.message


def test_own_layers_take_the_place_of_derived_problems(tmp_path: Path, host: DeviceEvaluator) -> None:
    own = Layer("own", Conv2dProblem(1000, 4, 10, 9, 6, 3, 3, pad_h=1))
    other = Layer("other", Conv2dProblem(2, 4, 10, 9, 6, 3, 3, dtype="f16"))
    plan = CasePlan(family(tmp_path), host.info, layers=(own, other))
    checking = FamilyCheck(plan, host)
    rows = list(checking.rows(most=FEW))
    assert {row.problem.with_runtime(1) for row in rows} == {own.problem.with_runtime(1)}
    assert {row.outcome for row in rows} == {Outcome.CORRECT}
    gaps = [gap for gap in coverage(checking).gaps if gap.what == "layer other"]
    assert [gap.why for gap in gaps] == ["the family requires: x, w and y hold floats"]


def test_failure_can_be_seen_again(tmp_path: Path, fork_server: ForkServer) -> None:
    old, new, _ = FAULTS["pair"]
    path = family(tmp_path, old, new).path
    few = (
        ("[supports]", """[supports]\n"one simple layer" = "groups == 1 and layout == 'nchw' and terms == 'none'"\n"""),
        ("values = [64, 128, 96]", "values = [64, 96]"),
        ("values = [1, 2, 3]", "values = [1, 2]"),
    )
    path.write_text(changed(path.read_text(), *few))
    words = ("check", "everything.cu.j2", "--device", "host", "--seconds", "250", "--seed", "0")
    done = fork_server.run(tmp_path, *words, "--configs", str(HALF))
    assert done.code == 1
    assert "All of these configs, but almost no others, have" in done.out
    assert "block=96 and turns=2" in done.out
    assert done.err.splitlines()[-1].endswith("configs failed; each kind is shown above")
    start = done.out.index('    name = "failed"')
    study = done.out[start : done.out.index("\n\n", start)]
    (tmp_path / "failed.toml").write_text("\n".join(line.strip() for line in study.splitlines()))
    again = fork_server.run(tmp_path, *words, "--study", "failed.toml", "--json")
    assert again.code == 1
    (row,) = json.loads(again.out)
    assert {"block": 96, "turns": 2}.items() <= row["config"].items()

"""Rules for every shipped family. A new file in the templates folder is tested without a change here."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from autotune.checking.cases import CasePlan
from autotune.checking.check import CheckRow, FamilyCheck
from autotune.cli import cli
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.exporting.launch_plan import MOST_MAPS
from autotune.family.render import render, visible_names
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate
from autotune.problem import Conv2dProblem, Layer, make_problem
from autotune.trial import Config, Outcome
from tests.long_run import every
from tests.problems import CONV, CONV_TRANSPOSE, PROBLEMS

from .shipped_families import FAMILIES, H200, TURING, default_of, family, supported

CASES = 5  # verified configs of each family; the short run verifies the first one of families without a test file here
OF_OTHERS = {
    *("conv_depthwise", "conv_depthwise_nhwc", "conv_few_channels_sm90", "conv_implicit_gemm"),
    *("conv_implicit_gemm_sm90", "conv_mma_gemm", "conv_transpose_implicit_gemm_sm90", "conv_transpose_mma_gemm"),
    *("conv_transpose_phases", "conv_transpose_phases_sm90", "conv_filter_gradient_mma", "conv_filter_gradient_sm90"),
    *("conv_transpose_depthwise_nhwc", "conv_transpose_depthwise_phases", "conv_transpose_depthwise_toeplitz_sm90"),
    *("conv_filter_gradient_depthwise", "conv_filter_gradient_few_channels_sm90", "conv_transpose_grouped_sm90"),
    *("conv_statistics_implicit_gemm_sm90", "conv_transpose_split_k_sm90", "conv_transpose_depthwise_strips"),
}
"""Families that test_conv.py, test_filter_gradient.py, test_depthwise_gradients.py and test_statistics.py verify."""
VERIFIED = OF_OTHERS | {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}


@cache
def default_source(name: str, label: str) -> KernelSource:
    """A family's default config on an awkward problem."""
    default = default_of(name, PROBLEMS[label])
    assert default is not None, f"{name}: no feasible config on {label}"
    return render(BoundTemplate(family(name), PROBLEMS[label], H200), default)


@pytest.mark.parametrize(("pad", "accuracy"), [(0, "fp16"), (1, "fp16"), (2, "fp16-acc16"), (8, "fp16-acc16")])
def test_half_accumulators_promise_what_the_fewest_products_at_a_padded_edge_allow(pad: int, accuracy: str) -> None:
    problem = Conv2dProblem(9, 1, 13, 11, 5, 7, 7, pad_h=pad, pad_w=pad)
    config = default_of("tiled", problem)
    assert config is not None
    halves = Config.of("tiled", {**config.params, "arithmetic": "f16_f32"})
    assert render(BoundTemplate(family("tiled"), problem, H200), halves).accuracy == accuracy


@pytest.mark.parametrize("name", FAMILIES)
def test_header_documents_the_family(name: str) -> None:
    template = family(name)
    assert template.summary[0].isupper()
    assert template.summary.endswith(".")
    assert template.params
    docs = [param.doc for param in template.params]
    assert all(len(doc) > 10 for doc in docs)
    assert len(set(docs)) == len(docs)
    rules = (*template.supports, *template.constraints, *template.prune)
    assert all(len(condition.reason.split()) > 2 for condition in rules)
    assert len({condition.reason for condition in rules}) == len(rules)
    assert all(param.name in template.text.partition("#*/")[0] for param in template.params)


@pytest.mark.parametrize("name", every(24, FAMILIES))
def test_command_line_prints_the_documentation(name: str) -> None:
    done = CliRunner().invoke(cli, ["templates", name], catch_exceptions=False)
    template = family(name)
    printed = " ".join(done.stdout.split())
    for words in (
        template.summary,
        *(condition.reason for condition in template.supports),
        *(param.name for param in template.params),
        *(param.doc for param in template.params),
        *(condition.reason for condition in (*template.constraints, *template.prune)),
    ):
        assert " ".join(words.split()) in printed


@pytest.mark.parametrize("name", FAMILIES)
def test_default_is_feasible_wherever_the_family_is_supported(name: str) -> None:
    assert supported(name, H200)
    for device in (TURING, H200):
        problems = supported(name, device)
        empty = [label for label, problem in problems.items() if default_of(name, problem, device) is None]
        assert not empty, f"{name}: no feasible config for {device.name} on {', '.join(empty)}"


def test_exported_libraries_have_room_for_the_tensor_maps_of_all_arrays() -> None:
    counts = {name: len({each.name for each in family(name).tensor_maps}) for name in FAMILIES}
    assert max(counts.values()) == MOST_MAPS, counts


@pytest.mark.parametrize("name", FAMILIES)
def test_kernel_serves_every_batch_size(name: str) -> None:
    for label, problem in supported(name).items():
        source = default_source(name, label)
        again = render(
            BoundTemplate(family(name), problem.with_runtime(problem.runtime_size + 10), H200), source.config
        )
        assert again.program == source.program, f"{name} on {label}: the text depends on n"
        for stage, larger in zip(source.stages, again.stages, strict=True):
            knows_n = problem.operation.leading in stage.args or larger.grid != stage.grid
            assert knows_n or "y" not in stage.args, f"{name} on {label}: {stage.entry} does not know n"


@pytest.mark.parametrize("name", FAMILIES)
def test_rendered_source_stands_alone_and_reads_as_written_by_hand(name: str) -> None:
    for label in supported(name):
        text = default_source(name, label).program.text
        assert not [line for line in text.splitlines() if line.startswith("#include") and '"' in line]
        for leftover in ("${", "//%", "/*%", "%*/", "/*#", "#*/", "#pragma once"):
            assert leftover not in text, f"{name} on {label}: {leftover} is left in the source"
        assert "\n\n\n" not in text, f"{name} on {label}: two blank lines"
        assert all(line == line.rstrip() for line in text.splitlines()), f"{name} on {label}: blanks at a line's end"


RENDER_ALL = """
import json
from pathlib import Path
from tests.problems import CONV, CONV_TRANSPOSE, PROBLEMS
from autotune.devices.device import DeviceInfo
from autotune.exporting.launch_plan import MOST_MAPS
from autotune.family.render import render, visible_names
from autotune.family.space import BoundTemplate
from autotune.family.template_files import load_templates
from autotune.trial import Config
import sys
families = load_templates()
device = DeviceInfo("cuda", "H200", arch=90, sm_count=132, memory_bytes=150_000_000_000)
hashes = {}
for name, label, values in json.load(sys.stdin):
    bound = BoundTemplate(families[name], PROBLEMS[label], device)
    hashes[f"{name} {label}"] = render(bound, Config.of(name, values)).hash
json.dump(hashes, sys.stdout)
"""


def test_rendering_is_the_same_in_every_process() -> None:
    sources = {(name, label): default_source(name, label) for name in FAMILIES for label in [golden_problem(name)]}
    asked = [[name, label, source.config.params] for (name, label), source in sources.items()]
    done = subprocess.run(
        [sys.executable, "-c", RENDER_ALL],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "12345"},
    )
    assert json.loads(done.stdout) == {f"{name} {label}": source.hash for (name, label), source in sources.items()}


# ---- golden files ----

GOLDEN = Path(__file__).parent.parent / "golden"
WHOLE = "implicit_gemm_sm90"
"""It includes most of the shared files, so its golden file also has their text. Other golden files have only their
family's text.
"""

GOLDEN_PROBLEMS = {"few_channels_sm90": "stem", "conv_few_channels_sm90": "conv first"}
"""For the first problem in NCHW, which reads and stores in fewer of the shared files."""


def golden_problem(name: str) -> str:
    """The awkward problem of a family's golden file: one with stride, padding and an epilogue where it can."""
    problems = supported(name)
    chosen = GOLDEN_PROBLEMS.get(name, "stride")
    return chosen if chosen in problems else next(iter(problems))


def own_text(source: KernelSource) -> str:
    """A kernel's text as in its family's file, before the shared files are included."""
    bound = BoundTemplate(family(source.config.template), source.problem, H200)
    text = bound.body.render(visible_names(bound, bound.check(source.config)))
    return re.sub(r"\n{3,}", "\n\n", text)


def matches_golden(file: str, text: str, *, update: bool) -> bool:
    """Whether a golden file has this text; `--update-golden` writes it first."""
    golden = GOLDEN / file
    if update:
        golden.write_text(text, encoding="utf-8")
    assert golden.is_file(), f"{golden.name} is missing; write it with: pytest tests/templates --update-golden"
    return text == golden.read_text(encoding="utf-8")


CHANGED = "generated code changed; if that is meant: pytest tests/templates --update-golden, and review the difference"


@pytest.mark.parametrize("name", FAMILIES)
def test_default_source_is_the_golden_file(name: str, update_golden: bool) -> None:
    source = default_source(name, golden_problem(name))
    text = source.program.text if name == WHOLE else own_text(source)
    of = "conv2d " if isinstance(source.problem, Conv2dProblem) else ""  # others begin with it
    golden = f"// {of}{source.problem}\n// {source.config}\n\n{text.strip()}\n"
    assert matches_golden(f"{name}.cu", golden, update=update_golden), CHANGED


def test_whole_texts_have_the_golden_hashes(update_golden: bool) -> None:
    """With each family's share of the shared files, which are not in its golden file."""
    sources = {name: default_source(name, golden_problem(name)) for name in FAMILIES}
    hashes = "".join(
        f"{hashlib.sha256(source.program.text.encode()).hexdigest()}  {name}\n" for name, source in sources.items()
    )
    assert matches_golden("sha256sums.txt", hashes, update=update_golden), CHANGED


def test_every_golden_file_has_a_family() -> None:
    assert {path.stem for path in GOLDEN.glob("*.cu")} <= set(FAMILIES)


# ---- on the host device ----


LIGHT = {
    "conv_implicit_gemm_rs_sm90": make_problem(
        CONV, {"n": 3, "c": 3, "d": 4, "w": 8, "k": 5, "t": 2, "s": 2, "pad_d": 1, "pad_w": 1}
    ),
    "conv_transpose_implicit_gemm_rs_sm90": make_problem(
        CONV_TRANSPOSE, {"n": 3, "c": 3, "d": 4, "w": 8, "k": 5, "t": 2, "s": 2}
    ),
}
"""In place of problems with many taps, whose split products take a CPU 4 to 22 s."""


@pytest.mark.cxx
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in VERIFIED])
def test_first_case_of_a_check_is_right(name: str, host: DeviceEvaluator) -> None:
    """On one problem, given as a layer, because deriving problems takes seconds."""
    problem = LIGHT.get(name) or supported(name)[golden_problem(name)]
    assert_right(CasePlan(family(name), host.info, layers=[Layer("first", problem)], seed=2026), host, 1)


@pytest.mark.cxx
@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_first_cases_of_a_check_are_right(name: str, host: DeviceEvaluator) -> None:
    assert_right(CasePlan(family(name), host.info, seed=2026), host, CASES)


def assert_right(plan: CasePlan, host: DeviceEvaluator, cases: int) -> None:
    """Run this many cases, each also for one image."""
    rows = list(FamilyCheck(plan, host).rows(most=cases))
    assert [row.outcome for row in rows] == [Outcome.CORRECT] * cases, [
        told(row) for row in rows if row.outcome != Outcome.CORRECT
    ]
    assert all((1,) in row.sizes for row in rows)


def told(row: CheckRow) -> str:
    """A failed config in words."""
    return f"{row.source.config} on {row.problem}: {row.outcome}/{row.reason}: {row.message}"


@pytest.mark.parametrize(("name", "reads"), [("implicit_gemm", True), ("direct", True), ("windowed", False)])
def test_a_layer_with_a_residual_is_for_families_that_read_it(name: str, reads: bool) -> None:
    problem = Conv2dProblem(2, 3, 9, 9, 4, 3, 3, epilogue="bias_add_relu")
    assert BoundTemplate(family(name), problem, H200).supported is reads
    assert BoundTemplate(family(name), replace(problem, epilogue="bias_relu"), H200).supported


LAYER = Conv2dProblem(64, 512, 14, 14, 512, 3, 3, 2, 2, 1, 1, dtype="f16", layout="nhwc", epilogue="bias_relu")


@pytest.mark.parametrize(
    ("problem", "arch", "tried"),
    [
        (LAYER, 90, {"implicit_gemm_sm90", "split_k_sm90", "mma_gemm"}),
        (replace(LAYER, n=512), 90, {"implicit_gemm_sm90"}),
        (replace(LAYER, n=512, c=40), 90, {"implicit_gemm_sm90", "mma_gemm"}),
        (replace(LAYER, n=512, c=3), 90, {"few_channels_sm90", "implicit_gemm", "mma_gemm"}),
        (LAYER, 80, {"implicit_gemm", "mma_gemm"}),
    ],
)
def test_on_hopper_channels_last_layers_are_left_to_the_families_that_win_there(
    problem: Conv2dProblem, arch: int, tried: set[str]
) -> None:
    bounds = [BoundTemplate(family(name), problem, replace(H200, arch=arch)) for name in FAMILIES]
    assert {bound.template.name for bound in bounds if bound.supported and bound.searched} == tried

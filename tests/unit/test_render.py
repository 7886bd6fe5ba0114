"""Rendering: one config becomes one text for every batch size, and the launches for one of them."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from autotune.errors import Rejected, TemplateError
from autotune.family.render import render
from autotune.family.source import KernelSource, Stage
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template_files import load_template, template_files
from autotune.trial import Config, Value
from tests.long_run import every
from tests.problems import PROBLEMS
from tests.unit.tiny import DEVICE, SMALL, bind, tiny

DEFAULTS: dict[str, Value] = {"threads": 64, "turns": 1, "order": "rows", "fast": False}


def source(bound: BoundTemplate, **values: Value) -> KernelSource:
    """The tiny family rendered with some values that are not the defaults."""
    return render(bound, Config.of("tiny", {**DEFAULTS, **values}))


def test_numbers_enter_as_constants_and_launches_are_evaluated(tmp_path: Path) -> None:
    found = source(bind(tiny(tmp_path)), threads=128, turns=3)
    assert "constexpr int C = 2, H = 9, W = 8;" in found.program.text
    assert "constexpr int THREADS = 128, TURNS = 3;" in found.program.text
    outputs = SMALL.array("y").elements
    assert found.stages == (
        Stage("conv2d_tiny", ("x", "w", "y", "n"), (128, 1, 1), (-(-outputs // 384), 1, 1), smem_bytes=0),
    )
    assert found.program.entries == ("conv2d_tiny",)
    assert (found.accuracy, found.deterministic, found.loop_count) == ("fp32", True, 1)
    assert (found.packed_w_bytes, found.workspace_bytes, found.prepare, found.constants) == (0, 0, (), ())


def test_the_text_reads_as_if_written_by_hand(tmp_path: Path) -> None:
    text = source(bind(tiny(tmp_path)), fast=True).program.text
    assert "#pragma unroll" in text
    assert "#pragma unroll" not in source(bind(tiny(tmp_path))).program.text
    for mark in ("//%", "/*%", "%*/", "${", "/*#", "#*/"):
        assert mark not in text
    assert not text.startswith("\n")
    assert text.endswith("}\n")


def samples(bound: BoundTemplate) -> Sequence[Config]:
    """A few feasible configs, with each parameter's extreme values or, if these are infeasible, with others."""
    for step in (1.0, 0.5, 0.25, 0.125):
        kept = {
            param.name: tuple(
                dict.fromkeys(param.values[int(at * (len(param.values) - 1))] for at in np.arange(0, 1.1, step))
            )
            for param in bound.template.params
        }
        if rows := len((space := SearchSpace(bound, kept)).rows):
            return [space.config(row) for row in sorted({0, rows // 3, 2 * rows // 3, rows - 1})]
    return []


@pytest.mark.parametrize("name", every(3, template_files()))
def test_one_text_serves_every_batch_size(name: str) -> None:
    family = load_template(template_files()[name])
    compared = 0
    for problem in PROBLEMS.values():
        bound = bind(family, problem)
        if problem.runtime_size == 1 or not bound.supported or compared >= 4:
            continue
        others = [bind(family, problem.with_runtime(n)) for n in (9, 1000)]
        for config in samples(bound):
            text = render(bound, config).program.text
            for other in others:
                with contextlib.suppress(Rejected):
                    assert render(other, config).program.text == text, f"{problem}: {config}"
                    compared += 1
    assert compared >= 4


def test_identical_configs_give_identical_sources(tmp_path: Path) -> None:
    first, again = source(bind(tiny(tmp_path)), turns=2), source(bind(tiny(tmp_path)), turns=2)
    assert first == again
    assert first.hash == again.hash


def test_the_hash_is_of_what_runs(tmp_path: Path) -> None:
    plain = source(bind(tiny(tmp_path)))
    noted = source(
        bind(tiny(tmp_path / "other", ("One output", "1 output"), ("threads a block", "threads in a block")))
    )
    assert noted.hash == plain.hash, "a note in the header is no other kernel"
    renamed = render(bind(tiny(tmp_path, name="renamed")), Config.of("renamed", DEFAULTS))
    assert renamed.hash == plain.hash, "nor is another name"
    different = {
        "text": source(bind(tiny(tmp_path, ("float sum = 0.0f", "float sum = 0.f")))),
        "launch": source(bind(tiny(tmp_path, ('["threads", "1", "1"]', '["threads", "2", "1"]')))),
        "accuracy": source(bind(tiny(tmp_path, ('"fp32"', '"tf32"')))),
        "determinism": source(bind(tiny(tmp_path, ("[params]", 'deterministic = "false"\n[params]')))),
        "config": source(bind(tiny(tmp_path)), turns=2),
        "batch size": source(bind(tiny(tmp_path), SMALL.with_runtime(4))),
        "problem": source(bind(tiny(tmp_path), dataclasses.replace(SMALL, h=10))),
    }
    hashes = {name: found.hash for name, found in different.items()}
    assert len({plain.hash, *hashes.values()}) == 1 + len(hashes), hashes


def test_the_hash_is_of_every_launch(tmp_path: Path) -> None:
    plain = source(bind(tiny(tmp_path, FULL)))
    hashes = {
        edit: source(bind(tiny(tmp_path, FULL, edit))).hash
        for edit in (
            ('count = "ceil_div(n, 2)"', 'count = "n"'),
            ('bytes = "n * turns"', 'bytes = "n * turns + 1"'),
            ('bytes = "4 * k * c * r * s"', 'bytes = "8 * k * c * r * s"'),
            ('from = "bias"', 'from = "w"'),
            ('grid = ["k", "1", "1"]', 'grid = ["k", "2", "1"]'),
            ("when = \"order == 'taps'\"", "when = \"order == 'rows'\""),
        )
    }
    assert len({plain.hash, *hashes.values()}) == 1 + len(hashes), hashes


INCLUDES = (
    "constexpr int C =",
    '#include "_a.cuh"\n#include "_b.cuh"\n#include <cuda_fp16.h>\n#include "_a.cuh"\nconstexpr int C =',
)


def test_included_files_stand_in_the_text_once(tmp_path: Path) -> None:
    (tmp_path / "_a.cuh").write_text('#pragma once\n\n#include "_b.cuh"\n// this is a\n')
    (tmp_path / "_b.cuh").write_text("#pragma once\n// this is b, which costs ${nothing}\n")
    text = source(bind(tiny(tmp_path, INCLUDES))).program.text
    assert text.count("// this is a") == 1
    assert text.count("// this is b, which costs ${nothing}") == 1
    assert text.index("// this is b") < text.index("// this is a")
    assert "#pragma once" not in text
    assert '"_' not in text
    assert "#include <cuda_fp16.h>" in text


def test_an_include_that_a_config_does_not_reach_is_not_in_its_text(tmp_path: Path) -> None:
    (tmp_path / "_a.cuh").write_text("// this is a\n")
    family = tiny(tmp_path, ("constexpr int C =", '//% if fast\n#include "_a.cuh"\n//% endif\nconstexpr int C ='))
    assert "// this is a" in source(bind(family), fast=True).program.text
    assert "// this is a" not in source(bind(family)).program.text


def test_an_included_name_may_follow_from_the_config(tmp_path: Path) -> None:
    family = ("constexpr int C =", '#include "_${order}.cuh"\nconstexpr int C =')
    (tmp_path / "_rows.cuh").write_text("// this is rows\n")
    with pytest.raises(TemplateError, match=r"tiny\.cu\.j2: body includes '_columns\.cuh', which is not next to"):
        source(bind(tiny(tmp_path, family)), order="columns")
    (tmp_path / "_columns.cuh").write_text("// this is columns\n")
    text = source(bind(tiny(tmp_path, family)), order="columns").program.text
    assert "// this is columns" in text
    assert "// this is rows" not in text


def test_the_shipped_shared_code_serves_ones_own_family(tmp_path: Path) -> None:
    family = tiny(tmp_path, ("constexpr int C =", '#include "_epilogue.cuh"\nconstexpr int C ='))
    assert "_epilogue.cuh" not in source(bind(family)).program.text
    assert len(source(bind(family)).program.text) > len(source(bind(tiny(tmp_path))).program.text)


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        ("${1.5}", "prints 1.5; only whole numbers, words and true/false may be printed"),
        ("${p * 0.5}", "prints"),
        ("${none}", "prints None"),
        ("${[1, 2]}", r"prints \[1, 2\]"),
        ("${1 / 2}", "prints 0.5"),
        ("${1 // 0}", "body raises ZeroDivisionError"),
        ("${1 + 'a'}", "body raises TypeError"),
        ("${order.upper.nothing}", "has no attribute 'nothing'"),
        ("${range(3).start.real.nothing}", "has no attribute 'nothing'"),
    ],
)
def test_what_a_body_must_not_print(tmp_path: Path, printed: str, words: str) -> None:
    bound = bind(tiny(tmp_path, ("float sum = 0.0f", f"float sum = {printed}")))
    with pytest.raises(TemplateError, match=words) as caught:
        source(bound)
    assert str(caught.value).startswith(f"{tmp_path / 'tiny.cu.j2'}: ")
    assert len(str(caught.value).splitlines()) == 1


def test_truth_is_printed_as_in_cxx(tmp_path: Path) -> None:
    bound = bind(tiny(tmp_path, ("float sum = 0.0f", "float sum = ${fast} + ${turns > 1} + ${order}")))
    assert "float sum = false + true + rows" in source(bound, turns=2).program.text


def test_a_rejected_config_is_not_rendered(tmp_path: Path) -> None:
    with pytest.raises(Rejected) as caught:
        source(bind(tiny(tmp_path)), threads=256, turns=6)
    assert (caught.value.outcome, caught.value.reason) == ("invalid_config", "constraint")


@pytest.mark.parametrize("extents", ['["threads - 64", "1", "1"]', '["threads", "turns - 2", "1"]'])
def test_a_launch_of_nothing_is_the_templates_mistake(tmp_path: Path, extents: str) -> None:
    with pytest.raises(TemplateError, match=r"block of conv2d_tiny is .*: at least 1 each"):
        source(bind(tiny(tmp_path, ('["threads", "1", "1"]', extents))))


def test_a_config_without_a_stage_is_the_templates_mistake(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match=r"stage: none has a `when` that holds for tiny threads=64 .* on n"):
        source(bind(tiny(tmp_path, ("[[stage]]", '[[stage]]\nwhen = "n < 0"'))))


def test_an_accuracy_class_that_does_not_exist(tmp_path: Path) -> None:
    bound = bind(tiny(tmp_path, ('accuracy = "fp32"', "accuracy = \"'fp32' if not fast else order\"")))
    assert source(bound).accuracy == "fp32"
    with pytest.raises((TemplateError, Rejected), match="accuracy"):
        source(bound, fast=True)


FULL = (
    "[[stage]]",
    """[constant]
w_const = { from = "packed_w", when = "fast" }
b_const = { from = "bias" }
[packed_w]
bytes = "4 * k * c * r * s"
[workspace]
bytes = "n * turns"
[loop]
count = "ceil_div(n, 2)"
[[prepare]]
entry = "pack"
args = ["w", "packed_w"]
block = ["32", "1", "1"]
grid = ["k", "1", "1"]
[[stage]]
entry = "zero"
args = ["y", "workspace", "i"]
block = ["32", "1", "1"]
grid = ["n", "1", "1"]
smem_bytes = "turns * 4"
when = "order == 'taps'"
[[stage]]""",
)


def test_stages_constants_and_sizes_follow_the_config(tmp_path: Path) -> None:
    bound = bind(tiny(tmp_path, FULL))
    found = source(bound, order="taps", turns=2)
    assert [stage.entry for stage in found.stages] == ["zero", "conv2d_tiny"]
    assert found.stages[0].smem_bytes == 8
    assert [stage.entry for stage in found.prepare] == ["pack"]
    assert found.program.entries == ("pack", "zero", "conv2d_tiny")
    assert [(symbol.name, symbol.origin) for symbol in found.constants] == [("b_const", "bias")]
    assert found.packed_w_bytes == 4 * 4 * 2 * 9
    assert (found.workspace_bytes, found.loop_count) == (6, 2)
    fast = source(bound, fast=True)
    assert [stage.entry for stage in fast.stages] == ["conv2d_tiny"]
    assert [symbol.name for symbol in fast.constants] == ["w_const", "b_const"]


def test_expressions_see_the_device(tmp_path: Path) -> None:
    bound = bind(tiny(tmp_path, ('"ceil_div(n * k * p * q, outputs)"', '"device.sm_count"')))
    assert source(bound).stages[0].grid == (DEVICE.sm_count, 1, 1)


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("padded_work", 'padded_work = "n // (turns - 1)"\n[params]'),
        ('bank_conflicts."the tile"', '[bank_conflicts]\n"the tile" = "n // (turns - 1)"\n[params]'),
        ("error_factor", 'error_factor = "n // (turns - 1)"\n[params]'),
    ],
)
def test_an_expression_that_raises_is_an_error_of_the_template(tmp_path: Path, key: str, line: str) -> None:
    bound = bind(tiny(tmp_path, ("[params]", line)))
    with pytest.raises(
        TemplateError, match=re.escape(f"{key}: expression 'n // (turns - 1)' raises ZeroDivisionError")
    ):
        source(bound, turns=1)
    source(bound, turns=2)


def test_an_algorithm_of_its_own_has_flops_and_errors_of_its_own(tmp_path: Path) -> None:
    plain = source(bind(tiny(tmp_path)))
    own = source(
        bind(tiny(tmp_path, ("[params]", 'flops = "n * k * p * q"\nerror_factor = "turns"\n[params]'))), turns=3
    )
    assert (plain.flops, plain.error_factor) == (None, 1)
    assert (own.flops, own.error_factor) == (SMALL.array("y").elements, 3)
    assert own.hash != source(bind(tiny(tmp_path)), turns=3).hash
    with pytest.raises(TemplateError, match=r"error_factor: expression .* is not a size: expected 1 to 2\^53, got 0"):
        source(bind(tiny(tmp_path, ("[params]", 'error_factor = "0"\n[params]'))))


@pytest.mark.parametrize(
    ("key", "change", "got"),
    [
        ("flops", ("[params]", 'flops = "10**400"\n[params]'), "1000"),
        ("smem_bytes", ("[[stage]]\n", '[[stage]]\nsmem_bytes = "0 - 5"\n'), "-5"),
        ("workspace.bytes", ("[[stage]]\n", '[workspace]\nbytes = "0 - 4"\n\n[[stage]]\n'), "-4"),
        ("packed_w.bytes", ("[[stage]]\n", '[packed_w]\nbytes = "2**60"\n\n[[stage]]\n'), "1152921504606846976"),
        ("loop.count", ("[[stage]]\n", '[loop]\ncount = "0"\n\n[[stage]]\n'), "0"),
    ],
)
def test_a_size_that_no_results_database_takes_is_an_error_of_the_template(
    tmp_path: Path, key: str, change: tuple[str, str], got: str
) -> None:
    own = key.partition(".")[0]
    takes = ('"x", "w", "y"', f'"x", "w", "{own}", "y"' if own in ("workspace", "packed_w") else '"x", "w", "y"')
    with pytest.raises(TemplateError, match=rf"{key}: expression .* is not a size: expected [01] to 2\^53, got {got}"):
        source(bind(tiny(tmp_path, change, takes)))

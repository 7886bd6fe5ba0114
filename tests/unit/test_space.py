"""A search space equals a brute-force filter of the full product, without visiting all of it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jinja2 import Environment

from autotune.devices.device import DeviceInfo
from autotune.errors import Rejected, StudyError, TemplateError
from autotune.expressions.functions import FUNCTIONS
from autotune.family.space import Admission, BoundTemplate, SearchSpace
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_template, template_files
from autotune.problem import Conv2dProblem
from autotune.trial import Config, Value
from tests.benchmarks.search_cost import large_space
from tests.unit.tiny import DEVICE, SMALL, bind, tiny

PARAMS = ("a", "b", "e", "f")


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A family that hypothesis draws."""

    params: Mapping[str, Sequence[int]]
    derived: Mapping[str, str]
    constraints: Sequence[str]


@st.composite
def drawn_families(draw: st.DrawFn) -> Drawn:
    """One to four parameters, values derived from them and from each other, and constraints on all of these."""
    params = {
        name: draw(st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True))
        for name in PARAMS[: draw(st.integers(1, 4))]
    }
    names = [*params, "k", "q"]
    pairs = ["{0} * {1}", "{0} + {1}", "max({0}, {1})", "{0} - {1}", "ceil_div({0}, {1} or 1)", "{0} % ({1} or 1)"]
    derived: dict[str, str] = {}
    for number in range(draw(st.integers(0, 3))):
        form = draw(st.sampled_from(pairs))
        derived[f"x{number}"] = form.format(draw(st.sampled_from(list(params))), draw(st.sampled_from(names)))
        names.append(f"x{number}")
    tests = ["{0} <= {1}", "{0} % ({1} or 1) == 0", "{0} != {1}", "{0} + {1} < 12", "is_pow2({0}) or {1} > 2"]
    constraints = []
    for _ in range(draw(st.integers(0, 4))):
        form = draw(st.sampled_from(tests))
        constraints.append(form.format(draw(st.sampled_from(names)), draw(st.sampled_from(names))))
    return Drawn(params, derived, constraints)


def text_of(drawn: Drawn) -> str:
    """The template file of a drawn family."""
    lines = ["/*# kernel", 'summary = "Drawn."', "supports = {}", "arch = {}", 'accuracy = "fp32"', "[params]"]
    lines += [f'{name} = {{ values = {list(values)}, doc = "drawn" }}' for name, values in drawn.params.items()]
    lines += ["[derived]", *(f"{name} = {json.dumps(text)}" for name, text in drawn.derived.items())]
    lines += ["[constraints]", *(f'"rule {at}" = {json.dumps(text)}' for at, text in enumerate(drawn.constraints))]
    lines += ["[[stage]]", 'entry = "f"', 'args = ["x", "w", "y", "n"]', 'block = ["32", "1", "1"]']
    lines += ['grid = ["n", "1", "1"]', "#*/", *(f"// ${{{name}}}" for name in drawn.params), ""]
    return "\n".join(lines)


def brute_force(drawn: Drawn, params: Mapping[str, Sequence[int]], problem: Conv2dProblem) -> list[dict[str, Value]]:
    """The feasible configs, in the product's order, by Jinja's own evaluation."""
    jinja = Environment(autoescape=False)
    jinja.globals = dict(FUNCTIONS)
    derived = {name: jinja.compile_expression(text) for name, text in drawn.derived.items()}
    rules = [jinja.compile_expression(text) for text in drawn.constraints]
    found: list[dict[str, Value]] = []
    for values in itertools.product(*params.values()):
        config: dict[str, Value] = dict(zip(params, values, strict=True))
        names: dict[str, Value] = {**problem.names(), **config}
        for name, expression in derived.items():
            names[name] = int(expression(names) or 0)
        if all(rule(names) for rule in rules):
            found.append(config)
    return found


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=drawn_families())
def test_the_space_is_the_filtered_product(tmp_path: Path, drawn: Drawn) -> None:
    path = tmp_path / "drawn.cu.j2"
    path.write_text(text_of(drawn))
    bound = bind(load_template(path))
    expected = brute_force(drawn, drawn.params, SMALL)
    space = SearchSpace(bound)
    assert space.complete
    assert [space.config(row).params for row in range(len(space.rows))] == expected
    assert all(space.row_of(space.config(row)) == row for row in range(len(space.rows)))
    first = {name: values[0] for name, values in drawn.params.items()}
    if expected:
        assert space.default is not None
        assert space.default.params == (first if first in expected else expected[0])
    else:
        assert space.default is None
    feasible = {tuple(config.values()) for config in expected}
    for values in itertools.product(*drawn.params.values()):
        config = Config.of("drawn", dict(zip(drawn.params, values, strict=True)))
        assert (space.row_of(config) is None) == (values not in feasible)
        if values in feasible:
            assert bound.check(config).items() >= config.params.items()
        else:
            with pytest.raises(Rejected):
                bound.check(config)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=drawn_families(), data=st.data())
def test_a_narrowed_space_is_the_filtered_product_of_what_is_kept(
    tmp_path: Path, drawn: Drawn, data: st.DataObject
) -> None:
    path = tmp_path / "drawn.cu.j2"
    path.write_text(text_of(drawn))
    kept = {
        name: data.draw(st.permutations(values)).copy()[: data.draw(st.integers(1, len(values)))]
        for name, values in drawn.params.items()
        if data.draw(st.booleans())
    }
    space = SearchSpace(bind(load_template(path)), kept)
    found = [space.config(row).params for row in range(len(space.rows))]
    assert found == brute_force(drawn, {**drawn.params, **kept}, SMALL)


def test_the_default_is_the_first_values_where_they_are_feasible(tmp_path: Path) -> None:
    space = SearchSpace(bind(tiny(tmp_path)))
    assert space.default is not None
    assert space.default.params == {"threads": 64, "turns": 1, "order": "rows", "fast": False}
    narrowed = SearchSpace(bind(tiny(tmp_path)), {"threads": [256, 64], "turns": [3, 1]})
    assert narrowed.default is not None
    assert narrowed.default.params == {"threads": 256, "turns": 1, "order": "rows", "fast": False}


def test_an_empty_space_has_no_default(tmp_path: Path) -> None:
    space = SearchSpace(bind(tiny(tmp_path)), {"threads": [256], "turns": [6]})
    assert space.default is None
    assert space.complete
    assert len(space.rows) == 0


@pytest.mark.parametrize(
    ("narrowed", "words"),
    [
        ({"width": [1]}, "space.tiny.width: no such parameter; tiny has threads, turns, order, fast"),
        ({"threads": [64, 65]}, "space.tiny.threads: 65 is not a value of the family; it has 64, 32, 128, 256"),
        ({"threads": ["64"]}, "space.tiny.threads: '64' is not a value of the family"),
        ({"turns": [True]}, "space.tiny.turns: True is not a value of the family"),
        ({"fast": [1]}, "space.tiny.fast: 1 is not a value of the family"),
    ],
)
def test_a_study_cannot_widen_a_family(tmp_path: Path, narrowed: Mapping[str, Sequence[Value]], words: str) -> None:
    with pytest.raises(StudyError) as caught:
        SearchSpace(bind(tiny(tmp_path)), narrowed)
    assert str(caught.value).startswith(words)


def test_a_config_of_another_family_or_shape_is_in_no_row(tmp_path: Path) -> None:
    space = SearchSpace(bind(tiny(tmp_path)))
    values = space.config(0).params
    assert space.row_of(Config.of("other", values)) is None
    assert space.row_of(Config.of("tiny", {**values, "threads": 65})) is None
    assert space.row_of(Config.of("tiny", {**values, "more": 1})) is None


def rejection(bound: BoundTemplate, **values: Value) -> tuple[str, str, str]:
    """Outcome, reason and message of a config that breaks a rule."""
    config = Config.of("tiny", {"threads": 64, "turns": 1, "order": "rows", "fast": False, **values})
    with pytest.raises(Rejected) as caught:
        bound.check(config)
    return (caught.value.outcome, caught.value.reason, caught.value.message)


def test_a_broken_constraint_is_named_by_its_reason(tmp_path: Path) -> None:
    bound = bind(tiny(tmp_path))
    reason = "a block computes at most 512 outputs"
    assert rejection(bound, threads=256, turns=3) == ("invalid_config", "constraint", reason)
    assert rejection(bound, order="taps", fast=True)[2] == "unrolling needs the taps inside"


def test_what_is_pruned_is_legal_and_not_searched(tmp_path: Path) -> None:
    """[prune] applies to a search, but not to `check` and exports, which only need legal configs."""
    family = tiny(tmp_path, ("[[stage]]", '[prune]\n"small blocks idle" = "outputs > 64"\n[[stage]]'))
    legal, searched = bind(family), bind(family, admission=Admission(prune=True))
    assert rejection(searched, threads=32) == ("invalid_config", "pruned", "small blocks idle")

    def outputs(config: Config) -> int:
        return int(legal.names(config)["outputs"])

    legal.check(Config.of("tiny", {"threads": 32, "turns": 1, "order": "rows", "fast": False}))
    few, all_of_them = (set(map_configs(SearchSpace(bound))) for bound in (searched, legal))
    assert few == {config for config in all_of_them if outputs(config) > 64}
    assert len(few) < len(all_of_them)


def test_a_derived_value_is_the_first_case_that_holds(tmp_path: Path) -> None:
    cases = '[{ when = "turns > 3", value = "7" }, { when = "fast", value = "threads" }, { value = "threads * turns" }]'
    bound = bind(tiny(tmp_path, ('"threads * turns"', cases), ('"outputs <= 512"', '"outputs != 7 or turns > 3"')))
    config: dict[str, Value] = {"threads": 64, "turns": 2, "order": "rows", "fast": False}
    changes: list[dict[str, Value]] = [{}, {"fast": True}, {"fast": True, "turns": 6}]
    found = [bound.check(Config.of("tiny", {**config, **change}))["outputs"] for change in changes]
    assert found == [128, 64, 7]


def test_the_first_condition_that_a_problem_breaks_says_why_it_is_not_supported(tmp_path: Path) -> None:
    family = tiny(tmp_path)
    assert bind(family).unmet == ""
    assert bind(family, dataclasses.replace(SMALL, layout="nhwc", dtype="f16")).unmet == "layout is NCHW"
    volta = dataclasses.replace(DEVICE, arch=60)
    assert bind(family, device=volta).unmet == "compute capability 7.0 or newer"
    assert bind(family, dataclasses.replace(SMALL, epilogue="bias_add")).unmet == "there is no epilogue"


def test_a_constraint_guards_the_derived_values_that_stand_on_it(tmp_path: Path) -> None:
    family = tiny(
        tmp_path,
        ('outputs = "', 'left = "128 - threads"\nparts = "turns * 100 // left"\noutputs = "'),
        ("[constraints]", '[constraints]\n"a part is left" = "left > 0"\n"few parts" = "parts < 9"'),
    )
    space = SearchSpace(bind(family))
    assert {config.params["threads"] for config in map(space.config, range(len(space.rows)))} == {64, 32}
    assert rejection(bind(family), threads=128) == ("invalid_config", "constraint", "a part is left")


def test_a_constraint_guards_what_becomes_known_together_with_it(tmp_path: Path) -> None:
    family = tiny(
        tmp_path,
        ('outputs = "', 'parts = "100 // (turns - 1)"\noutputs = "'),
        ("[constraints]", '[constraints]\n"few parts" = "parts < 60"\n"more than one turn" = "turns > 1"'),
    )
    space = SearchSpace(bind(family))
    assert {config.params["turns"] for config in map_configs(space)} == {3, 4, 6}
    assert rejection(bind(family), turns=1)[2] == "more than one turn"


def test_an_expression_that_raises_is_an_error_and_never_feasible(tmp_path: Path) -> None:
    family = tiny(tmp_path, ('"outputs <= 512"', '"outputs // (turns - 1) <= 512"'))
    with pytest.raises(TemplateError, match=r'constraints."a block computes at most 512 outputs": .* raises ZeroDivis'):
        SearchSpace(bind(family))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (('["threads", "1", "1"]', '["threads", "8", "1"]'), "threads per block of conv2d_tiny: 2048 exceeds 1024"),
        (('["threads", "1", "1"]', '["1", "1", "threads"]'), "block z of conv2d_tiny: 256 exceeds 64"),
        (('["threads", "1", "1"]', '["threads * 8", "1", "1"]'), "threads per block of conv2d_tiny: 2048 exceeds 1024"),
        (('"1", "1"]\n#*/', '"256 * threads", "1"]\n#*/'), "grid y of conv2d_tiny: 65536 exceeds 65535"),
        (('"1", "1"]\n#*/', '"1", "257 * threads"]\n#*/'), "grid z of conv2d_tiny: 65792 exceeds 65535"),
        (("#*/", 'smem_bytes = "threads * 1024"\n#*/'), "shared memory of conv2d_tiny: 262144 exceeds 232448"),
        (
            ('"y", "n"]', '"y", "n", "workspace"]\n[workspace]\nbytes = "threads * 16"\n[[stage]]\nentry = "next"\n'
             'args = ["y"]'),
            "workspace bytes: 4096 exceeds 4095",
        ),
    ],
)  # fmt: skip
def test_limits_that_all_kernels_share_need_no_constraint(tmp_path: Path, edit: tuple[str, str], message: str) -> None:
    if "workspace" in message:
        edit = ('"y", "n"]', '"y", "n", "workspace"]')
        family = tiny(tmp_path, edit, ("[[stage]]", '[workspace]\nbytes = "threads * 16"\n[[stage]]'))
    else:
        family = tiny(tmp_path, edit)
    bound = bind(family, admission=Admission(workspace_limit_bytes=4095))
    outcome, reason, words = rejection(bound, threads=256)
    assert (outcome, reason) == ("invalid_config", "resource_limit")
    assert message in words.split("; ")
    assert all(config.params["threads"] != 256 for config in map_configs(SearchSpace(bound)))


def map_configs(space: SearchSpace) -> list[Config]:
    """All configs of a space."""
    return [space.config(row) for row in range(len(space.rows))]


def test_limits_are_the_devices_own(tmp_path: Path) -> None:
    family = tiny(tmp_path, ("#*/", 'smem_bytes = "threads * 1024"\n#*/'))
    turing = dataclasses.replace(DEVICE, arch=75, smem_per_block_bytes=65536)
    threads = {config.params["threads"] for config in map_configs(SearchSpace(bind(family, device=turing)))}
    assert threads == {32, 64}


def test_a_stage_that_does_not_run_has_no_limits(tmp_path: Path) -> None:
    when = 'when = "order == \'taps\'"\nsmem_bytes = "1 << 20"'.replace("1 << 20", "1048576")
    family = tiny(
        tmp_path,
        (
            "#*/",
            f'[[stage]]\nentry = "last"\nargs = ["y"]\nblock = ["1", "1", "1"]\ngrid = ["1", "1", "1"]\n{when}\n#*/',
        ),
    )
    orders = {config.params["order"] for config in map_configs(SearchSpace(bind(family)))}
    assert orders == {"rows"}


def test_only_admitted_accuracy_classes_are_in_the_space(tmp_path: Path) -> None:
    family = tiny(tmp_path, ('accuracy = "fp32"', "accuracy = \"'tf32' if fast else 'fp32'\""))
    assert {config.params["fast"] for config in map_configs(SearchSpace(bind(family)))} == {False, True}
    strict = bind(family, admission=Admission(accuracy=("fp32",)))
    assert {config.params["fast"] for config in map_configs(SearchSpace(strict))} == {False}
    assert rejection(strict, fast=True) == ("invalid_config", "accuracy_class", "accuracy class is one of fp32")


@pytest.mark.parametrize(
    ("problem", "device", "supported"),
    [
        (SMALL, DEVICE, True),
        (dataclasses.replace(SMALL, layout="nhwc"), DEVICE, False),
        (dataclasses.replace(SMALL, dtype="f16"), DEVICE, False),
        (SMALL, dataclasses.replace(DEVICE, arch=61), False),
    ],
)
def test_support_follows_problem_and_device(
    tmp_path: Path, problem: Conv2dProblem, device: DeviceInfo, supported: bool
) -> None:
    assert bind(tiny(tmp_path), problem, device).supported == supported


def test_expressions_see_problem_and_device(tmp_path: Path) -> None:
    rule = "\"p * q == 42 and dtype == 'f32' and device.sm_count == 132 and device.smem_per_block_bytes == 232448\""
    family = tiny(tmp_path, ('"outputs <= 512"', rule))
    assert len(SearchSpace(bind(family)).rows) == 60
    assert len(SearchSpace(bind(family, device=dataclasses.replace(DEVICE, sm_count=78))).rows) == 0


def test_a_config_with_other_parameters_is_the_callers_mistake(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="parameters more do not match"):
        rejection(bind(tiny(tmp_path)), more=1)


def many(folder: Path, constraint: str) -> KernelTemplate:
    """A family of 4 to the power of 9 = 262,144 configs before its constraint."""
    drawn = Drawn({f"a{at}": (1, 2, 3, 4) for at in range(9)}, {}, [constraint])
    path = folder / "many.cu.j2"
    path.write_text(text_of(drawn))
    return load_template(path)


def test_a_hundred_thousand_configs_under_ten_constraints_are_soon_ready(tmp_path: Path) -> None:
    """0.05 s here, the limit is two; visiting each config took 0.5 s, a filter of the product 8 s."""
    started = time.process_time()
    space = large_space(tmp_path)
    assert time.process_time() - started < 2
    assert space.complete
    assert len(space.rows) == 102_996


def test_a_space_too_large_to_enumerate_is_sampled(tmp_path: Path) -> None:
    bound = bind(many(tmp_path, "a8 != 3"), SMALL)
    whole = SearchSpace(bound)
    assert whole.complete
    assert len(whole.rows) == 3 * 4**8
    bound = bind(many(tmp_path, "a8 != 3 or a0 == 1"), SMALL)
    space = SearchSpace(bound, seed=1)
    assert not space.complete
    assert 15_000 < len(space.rows) <= 20_000
    rows = space.rows.tolist()
    assert rows == sorted(rows)
    assert len({tuple(row) for row in rows}) == len(rows)
    assert all(row[8] != 2 or row[0] == 0 for row in rows)
    assert space.default == space.config(0)
    assert all(set(column) == {0, 1, 2, 3} for column in zip(*rows, strict=True))
    assert SearchSpace(bound, seed=1).rows.tolist() == rows


HOPPER = DeviceInfo("cuda", "H200", arch=90, sm_count=132, memory_bytes=1 << 37, smem_per_block_bytes=232448)


@pytest.mark.parametrize("name", ["implicit_gemm_sm90", "direct_strip", "mma_gemm", "tiled"])
def test_the_padded_work_of_all_rows_are_those_of_each(name: str) -> None:
    family = load_template(template_files()[name])
    half = dataclasses.replace(SMALL, c=64, k=64, dtype="f16", layout="nhwc")
    problem = next(one for one in (SMALL, half) if BoundTemplate(family, one, HOPPER).supported)
    space = SearchSpace(BoundTemplate(family, problem, HOPPER))
    if "padded_work" not in family.header:
        assert space.padded_work is None
        return
    assert space.padded_work is not None
    assert len(space.padded_work) == len(space.rows)
    bound = space.bound.bind(family.padded_work)
    for row in range(0, len(space.rows), 97):
        assert space.padded_work[row] == bound.integer(space.bound.names(space.config(row)))
    assert len(set(space.padded_work.tolist())) > 1

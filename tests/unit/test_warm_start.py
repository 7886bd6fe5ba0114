"""Warm starts: similar layers on the same kind of device contribute their best configs; a resumed run is equal."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

import pytest

from autotune.api.device_names import evaluator_of
from autotune.cli.summary import design_words
from autotune.devices.device import DeviceInfo
from autotune.evaluation.null import NullEvaluator, predicted_us
from autotune.family.render import render
from autotune.family.space import SearchSpace
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_template, template_files
from autotune.problem import Conv2dProblem, Layer
from autotune.resources import cost_model_file
from autotune.search.cost_model import read_cost_model
from autotune.search.warm_start import WARM_START, warm_start
from autotune.store import Store, TopTrial
from autotune.study import Study
from autotune.study_reader import find_study, load_study
from autotune.trial import Config
from autotune.tuning.layer_result import DesignResult, LayerResult
from autotune.tuning.tune import tune
from tests.benchmarks.warm_start import STUDIES, leave_out
from tests.unit.store.builders import correct
from tests.unit.tiny import SMALL, Command, bind, changed, tiny

H200 = Path(__file__).parents[2] / "tests" / "data" / "databases" / "report-layers.db"
MODEL = read_cost_model(cost_model_file())
LARGER = Conv2dProblem(3, 2, 11, 8, 4, 3, 3)
STRANGE = Conv2dProblem(3, 2, 300, 300, 256, 1, 1, dtype="f32")


@pytest.fixture
def families(tmp_path: Path) -> Mapping[str, KernelTemplate]:
    """The tiny family: on the null device a config's time hardly depends on the layer."""
    return {"tiny": tiny(tmp_path)}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty database."""
    with Store(tmp_path / "one.db") as opened:
        yield opened


def study(name: str, problem: Conv2dProblem, trials: int, **changes: object) -> Study:
    """A study of one layer."""
    plain = Study(name, (Layer("one", problem),), trials=trials, seed=3)
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def configs(store: Store, name: str) -> list[tuple[Config, str]]:
    """The configs that a study evaluated, in order, and their sources."""
    return [(row.trial.config, row.proposed_by) for row in store.trials.list(name) if row.trial.compiled]


def run(store: Store, families: Mapping[str, KernelTemplate], wanted: Study, **words: bool) -> LayerResult:
    """Tune on the null device."""
    (result,) = tune(wanted, families, NullEvaluator(""), store, fresh=words.get("fresh", False))
    return result


def test_the_best_configs_of_a_like_layer_come_first(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    run(store, families, study("before", SMALL, 48))
    result = run(store, families, study("after", LARGER, 20))
    found = configs(store, "after")
    assert [by for _, by in found[:10]] == ["warm_start"] * 10
    assert "warm_start" not in [by for _, by in found[10:]]
    space = SearchSpace(bind(families["tiny"], LARGER))
    ranked = sorted(range(48), key=lambda row: predicted_us(render(space.bound, space.config(row))))
    assert space.config(ranked[0]) in [config for config, _ in found[:3]]
    start = result.design
    assert start is not None
    assert (start.by, start.used, start.layers[0][0]) == ("warm_start", 10, "before.one on null")
    assert start.best is not None
    assert result.best is not None
    assert start.best.config == result.best.config


def test_what_fp16_found_comes_first_in_bf16(store: Store) -> None:
    families = {"implicit_gemm_sm90": load_template(template_files()["implicit_gemm_sm90"])}
    half = Conv2dProblem(8, 64, 14, 14, 128, 1, 1, dtype="f16", layout="nhwc", epilogue="bias_relu")
    run(store, families, study("before", half, 40))
    run(store, families, study("nearer shape", replace(half, k=192, dtype="bf16"), 12, warm_start=False))
    best = min(store.trials.list("before"), key=lambda row: row.trial.median_us or math.inf)
    result = run(store, families, study("after", replace(half, dtype="bf16"), 12))
    start = result.design
    assert start is not None
    name, distance = start.layers[0]
    assert name == "before.one on null"
    assert distance == pytest.approx(0.2)
    assert best.trial.config in [config for config, _ in configs(store, "after")[:3]]


def test_what_the_layers_own_trials_say_counts(families: Mapping[str, KernelTemplate]) -> None:
    info, near = NullEvaluator("").info, SearchSpace(bind(families["tiny"], SMALL))
    before = [near.config(row) for row in range(len(near.rows))]
    top_trials = [
        TopTrial("before.one", SMALL, info, config, predicted_us(render(near.bound, config))) for config in before
    ]
    start = warm_start(LARGER, info, top_trials, [SearchSpace(bind(families["tiny"], LARGER))], 10, MODEL, {})
    first = start.next({}, [])
    assert first is not None
    second = start.next({}, [first])
    assert second is not None
    assert len({first, second, start.next({}, [first, second])}) == 3
    assert start.next({first: 0.0, second: 0.7}, []) != start.next({first: 0.7, second: 0.0}, [])
    assert start.next(dict.fromkeys(before[:10], 0.0), []) is None


def test_a_family_that_the_nearest_layer_never_tried_comes_first_where_it_was_faster(tmp_path: Path) -> None:
    """As if a family had been added and tuned on one layer."""
    info, far = NullEvaluator("").info, Conv2dProblem(3, 4, 13, 12, 8, 3, 3)
    old, new = tiny(tmp_path, name="old"), tiny(tmp_path, name="new")

    def top_trials(family: KernelTemplate, problem: Conv2dProblem, slower: float) -> list[TopTrial]:
        space = SearchSpace(bind(family, problem))
        rows = [space.config(row) for row in range(len(space.rows))]
        return [
            TopTrial("a.layer", problem, info, row, slower * predicted_us(render(space.bound, row))) for row in rows
        ]

    def first(known: list[TopTrial]) -> Config | None:
        spaces = [SearchSpace(bind(family, LARGER)) for family in (old, new)]
        return warm_start(LARGER, info, known, spaces, 10, MODEL, {}).next({}, [])

    near, faster = top_trials(old, SMALL, 1.0), [*top_trials(old, far, 1.0), *top_trials(new, far, 0.5)]
    slower = [*top_trials(old, far, 1.0), *top_trials(new, far, 2.0)]
    for known, family in ((faster, "new"), (near + faster, "new"), (near + slower, "old")):
        found = first(known)
        assert found is not None
        assert found.template == family


def test_families_that_a_study_does_not_want_say_nothing(tmp_path: Path) -> None:
    info, other = NullEvaluator("").info, tiny(tmp_path, name="other")
    space, elsewhere = SearchSpace(bind(tiny(tmp_path), SMALL)), SearchSpace(bind(other, SMALL))
    known = [
        TopTrial("a.layer", SMALL, info, each.config(row), slower * predicted_us(render(each.bound, each.config(row))))
        for each, slower in ((space, 9.0), (elsewhere, 1.0))
        for row in range(len(each.rows))
    ]
    assert warm_start(LARGER, info, known, [SearchSpace(bind(tiny(tmp_path), LARGER))], 10, MODEL, {}).layers


def test_an_empty_database_and_a_study_that_wants_none_start_with_the_default(
    store: Store, families: Mapping[str, KernelTemplate]
) -> None:
    first = run(store, families, study("before", SMALL, 20))
    assert (configs(store, "before")[0][1], first.design) == ("default", None)
    cold = run(store, families, study("after", LARGER, 20, warm_start=False))
    assert (configs(store, "after")[0][1], cold.design) == ("default", None)


def test_nothing_near_is_no_start(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    run(store, families, study("before", SMALL, 20))
    assert run(store, families, study("after", STRANGE, 5)).design is None


def test_two_trials_of_another_layer_say_nothing(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    run(store, families, study("two", SMALL, 2))
    assert run(store, families, study("after-two", LARGER, 5)).design is None
    run(store, families, study("three", SMALL, 3))
    assert run(store, families, study("after-three", LARGER, 5)).design is not None


def test_another_kind_of_device_says_nothing(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    class Elsewhere(NullEvaluator):
        """A null device that claims to be a CPU."""

        @property
        def info(self) -> DeviceInfo:
            """As if it were one."""
            return dataclasses.replace(super().info, kind="host")

    tune(study("before", SMALL, 20), families, Elsewhere(""), store)
    assert run(store, families, study("after", SMALL, 12)).design is None


def test_a_fresh_start_forgets_what_was_before(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    run(store, families, study("before", SMALL, 20))
    assert run(store, families, study("before", SMALL, 12), fresh=True).design is None
    assert run(store, families, study("after", LARGER, 12)).design is not None


def test_a_run_cut_short_goes_on_as_it_would_have(tmp_path: Path, families: Mapping[str, KernelTemplate]) -> None:
    found = []
    for stops in ((30,), (4, 15, 30)):
        with Store(tmp_path / f"{len(stops)}.db") as store:
            run(store, families, study("before", SMALL, 12))
            for trials in stops:
                run(store, families, study("after", LARGER, trials))
                run(store, families, study("later", SMALL.with_runtime(8), 48))  # which must not change the next ones
            found.append(configs(store, "after"))
    assert found[0] == found[1]


def test_the_summary_says_how_many_and_whether_they_helped(autotune: Command, filled: Path) -> None:
    text = Path("small.toml").read_text()
    Path("next.toml").write_text(changed(text, ('name = "small"', 'name = "next"'), ("h = 9", "h = 11")))
    words = ("tune", "next.toml", "--family-dir", "families", "--device", "null")
    finished = autotune(*words, "--trials", 12)
    (line,) = [line for line in finished.err.splitlines() if "warm start" in line]
    assert line.startswith("  warm start: 10 configs, from small.one on null (distance 0.")
    assert "the overall best is one of them" in line or "the overall best is " in line
    assert "warm start" not in autotune(*words, "--db", "cold.db").err
    assert "warm start" not in autotune(*words, "--no-warm-start", "--fresh").err


def test_a_winner_of_the_finals_that_the_search_had_behind_is_not_called_faster() -> None:
    start = DesignResult(WARM_START, 6, (("small.one", 2.0),), correct(0, 100.0))
    assert design_words(start, correct(1, 80.0)).endswith("; the overall best is 25.0% faster than the best of them")
    told = "; the finals' winner was 25.0% slower in the search than the best of them"
    assert design_words(start, correct(1, 125.0)).endswith(told)


@pytest.mark.long
def test_layers_left_out_come_close_within_ten_evaluations() -> None:
    """On recorded results; tests/benchmarks/warm_start.py measures it on a GPU, see docs/search.md."""
    studies = [dataclasses.replace(load_study(find_study(name)), trials=10) for name in STUDIES]
    found = leave_out(H200, evaluator_of(f"replay:{H200}", 1), studies)
    ratios = {left.layer: left.few_us / left.full_us for left in found}
    assert len(ratios) == 6
    assert geometric_mean(ratios.values()) <= 1.06, ratios  # 1.12 without a warm start
    assert sorted(ratios.values())[2] <= 1.01, ratios  # 1.12 without

"""A rule as a tuning target: threshold and kernels in one search, on a null device with times of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from autotune.dispatch.cells import Run
from autotune.dispatch.dispatcher import Split
from autotune.dispatch.header import load_dispatch_template
from autotune.dispatch.rule_search import SearchedRule, search_rule
from autotune.dispatch.rule_space import Pair, RuleSpace, Side
from autotune.dispatch.thresholds import Gap
from autotune.family.template import KernelTemplate, Param
from autotune.problem import Layer
from autotune.store import Store
from autotune.study import Study
from autotune.study_reader import load_study
from autotune.trial import Config

from .test_dispatch import SIZES, STUDY, Device, families  # noqa: F401 - a fixture
from .tiny import Command, write_family

RULE = """
[[technique]]
name = "few threads"
template = "tiny"
space = { threads = 32, turns = 1, order = "rows", fast = false }

[[rule]]
name = "given"
property = "k"
threshold = 12
below = "few threads"
above = "few threads"

[[rule]]
name = "searched"
property = ["k", "n"]
trials = 30
below = "tiny"
above = "tiny"
"""
GAPS = (5, 8, 14, 23, 39)
"""thresholds between the layers' k: 4, 6, 12, 16, 32 and 48"""


@pytest.fixture
def study(tmp_path: Path) -> Study:
    path = tmp_path / "several.toml"
    path.write_text(STUDY + RULE)
    return load_study(path)


def search(
    path: Path,
    study: Study,
    families: dict[str, KernelTemplate],  # noqa: F811
    device: Device,
    *,
    layers: tuple[Layer, ...] | None = None,
    trials: int = 30,
) -> SearchedRule:
    rule = replace(study.rules[1], trials=trials)
    with Store(path) as store:
        run = Run(study, families, device, store)
        return search_rule(run, load_dispatch_template(), rule, study.layers if layers is None else layers)


def k_of(layer: Layer) -> int:
    return int(layer.problem.values["k"])


def time_us(layer: Layer, config: Config) -> float:
    """What the device says that a kernel of `tiny` takes."""
    values, wanted = config.params, k_of(layer)
    has = int(values["threads"]) // 4
    return layer.problem.flops / 1e4 * max(wanted / has, has / wanted) * (10 + int(values["turns"]))


def test_the_rule_is_as_good_as_the_best_of_all(
    tmp_path: Path,
    study: Study,
    families: dict[str, KernelTemplate],  # noqa: F811
) -> None:
    found = search(tmp_path / "a.db", study, families, Device(), trials=60)
    kernels = [Config.of("tiny", {"threads": threads, "turns": 1}) for threads in (32, 64, 128, 256)]
    least = min(
        sum(layer.count * time_us(layer, below if k_of(layer) < gap else above) for layer in study.layers)
        for gap, below, above in product(GAPS, kernels, kernels)
    )
    assert found.total_us == pytest.approx(least)
    assert found.total_us == pytest.approx(sum(one.layer.count * (one.time_us or 0) for one in found.layers))
    assert isinstance(found.dispatcher.rule, Split)


def test_an_evaluation_measures_two_kernels_at_most_and_none_twice(
    tmp_path: Path,
    study: Study,
    families: dict[str, KernelTemplate],  # noqa: F811
) -> None:
    device = Device()
    found = search(tmp_path / "a.db", study, families, device)
    ran = [(source.problem, source.config) for source in device.ran]
    assert len(set(ran)) == len(ran) == found.measured
    assert len(ran) <= len(study.layers) * found.evaluated, "one kernel a layer for each rule"


def test_a_second_run_goes_on_where_the_first_ended(
    tmp_path: Path,
    study: Study,
    families: dict[str, KernelTemplate],  # noqa: F811
) -> None:
    short = search(tmp_path / "a.db", study, families, Device(), trials=12)
    assert short.tried == short.evaluated == 12
    device = Device()
    again = search(tmp_path / "a.db", study, families, device, trials=12)
    assert (again.dispatcher, again.evaluated, device.ran) == (short.dispatcher, 0, [])
    more = search(tmp_path / "a.db", study, families, Device())
    whole = search(tmp_path / "b.db", study, families, Device())
    assert (more.tried, more.evaluated) == (30, 18)
    assert more.total_us == pytest.approx(whole.total_us)


def test_what_is_held_out_is_judged_and_nothing_of_it_is_known_to_the_search(
    tmp_path: Path,
    study: Study,
    families: dict[str, KernelTemplate],  # noqa: F811
) -> None:
    device = Device()
    found = search(tmp_path / "a.db", study, families, device, layers=study.layers[:4])
    assert {one.layer.name: one.role for one in found.layers} == {
        **dict.fromkeys(("k4", "k6", "k12", "k16"), "tuned"),
        **dict.fromkeys(("k32", "k48"), "held out"),
    }
    of_held = {source.config for source in device.ran if source.problem.values["k"] in (32, 48)}
    assert of_held <= {kernel.config for kernel in found.dispatcher.all_kernels}
    assert found.total_us == pytest.approx(
        sum(one.layer.count * (one.time_us or 0) for one in found.layers if one.role == "tuned")
    )


def test_the_studys_own_rules_are_tried_first_and_all_are_trials(
    tmp_path: Path,
    study: Study,
    families: dict[str, KernelTemplate],  # noqa: F811
    autotune: Command,
) -> None:
    path = tmp_path / "a.db"
    search(path, study, families, Device())
    statement = (
        "SELECT number, proposed_by, config ->> '$.threshold' AS threshold, config ->> '$.below_threads' AS threads "
        "FROM trials JOIN tuning_targets ON tuning_targets.id = tuning_target_id WHERE kind = 'layers' ORDER BY number"
    )
    rows = json.loads(autotune("query", statement, "--db", path, "--json").out)
    assert len(rows) == 30
    assert rows[0] == {"number": 0, "proposed_by": "given", "threshold": 12, "threads": 32}
    assert {row["proposed_by"] for row in rows} <= {"given", "known", "default", "search"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the family and the study."""
    write_family(tmp_path / "families")
    (tmp_path / "several.toml").write_text(STUDY + RULE)
    return tmp_path


WORDS = ("--family-dir", "families", "--device", "null")


def test_the_command_searches_the_target_and_dispatch_ranks_the_rule(
    autotune: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    asked = ("tune", "several.toml", *WORDS, "--target", "searched", "--trials", 8, "--holdout", 0)
    rows = json.loads(autotune(*asked, "--json").out)
    assert [row["role"] for row in rows].count("held out") == len(SIZES) // 4
    assert autotune("tune", "several.toml", *WORDS, "--trials", 6).code == 0
    ranked = ("dispatch", "several.toml", *WORDS, "--holdout", 0, "--no-explore", "--table", "rules", "--json")
    rules = {row["proposed_by"]: row for row in json.loads(autotune(*ranked).out)}
    searched = rules["searched together"]
    tuned_us = sum(row["count"] * row["time_us"] for row in rows if row["role"] == "tuned")
    assert searched["total_us"] == pytest.approx(tuned_us)
    assert searched["held_out_us"] > 0
    assert {"exact", "given"} <= rules.keys()


def test_a_study_may_name_its_target(autotune: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "several.toml").write_text(f'target = "searched"\n{STUDY}{RULE}')
    said = autotune("tune", "several.toml", *WORDS, "--trials", 4)
    assert said.code == 0
    assert said.out.startswith("The rule:\n  ")
    assert "4 rules evaluated, 4 of them now" in said.out


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("trials = 30", "trials = 30\nthreshold = 5", "rule[1].threshold: expected either threshold, or trials"),
        ('below = "tiny"', 'below = "tinny"', "rule 'searched': no template named 'tinny' (did you mean 'tiny'?)"),
        ('["k", "n"]', '["m"]', "rule 'searched': property 'm': expected one of k, c,"),
        ('["k", "n"]', '["n"]', "rule 'searched': all layers have the same n: there is no threshold"),
        ('name = "searched"', 'name = "given"', "rule[1].name: 'given' occurs twice"),
        ("trials = 30", "threshold = 5", "rule[1].property: a rule with a threshold has one name here"),
    ],
)
def test_bad_rules_are_one_line(
    autotune: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, message: str
) -> None:
    monkeypatch.chdir(folder)
    (folder / "several.toml").write_text((STUDY + RULE).replace(before, after))
    said = autotune("tune", "several.toml", *WORDS, "--target", "searched")
    assert said.code != 0
    assert message in said.err
    assert len(said.err.splitlines()) <= 2


def test_targets_and_options_that_do_not_fit_are_refused(
    autotune: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert "there are 'searched'" in autotune("tune", "several.toml", *WORDS, "--target", "given").err
    assert (
        "--baseline has no effect; leave it out"
        in autotune("tune", "several.toml", *WORDS, "--target", "searched", "--baseline", "cudnn").err
    )
    assert "give --target" in autotune("tune", "several.toml", *WORDS, "--holdout", 1).err
    (folder / "several.toml").write_text(f'target = "given"\n{STUDY}{RULE}')
    assert "target: 'given': no [[rule]] with trials" in autotune("tune", "several.toml", *WORDS).err


def side(name: str, kernels: int, layers: int) -> Side:
    """A side whose first kernels serve all layers, and each further one a layer less."""
    serves = np.array([[layer < layers - kernel // 10 for layer in range(layers)] for kernel in range(kernels)])
    rows = np.arange(kernels).reshape(-1, 1)
    return Side(name, name, (Param("number", tuple(range(kernels)), ""),), rows, serves)


def test_every_rule_of_a_space_has_kernels_that_serve_their_sides() -> None:
    below, above = side("low", 40, 4), side("high", 40, 4)
    gaps = {Gap("k", at): np.arange(4) < at for at in (1, 2, 3)}
    space = RuleSpace(below, above, gaps, seed=0)
    assert space.complete
    assert len(space.rows) == sum(len(below.serving(mask)) * len(above.serving(~mask)) for mask in gaps.values())
    known = [Config.of("low", {"number": 17}), Config.of("high", {"number": 3})]
    small = RuleSpace(below, above, gaps, seed=0, first=known, most_rows=300)
    assert not small.complete
    assert 200 <= len(small.rows) <= 300
    for one in (space, small):
        for row in range(len(one.rows)):
            pair = one.pair(one.config(row))
            low, high = (int(kernel.params["number"]) for kernel in (pair.below, pair.above))
            mask = gaps[pair.gap]
            assert below.serves[low][mask].all(), pair
            assert above.serves[high][~mask].all(), pair
            assert one.point(pair) == one.config(row)
    assert small.point(Pair(Gap("k", 2), *known)) is not None, "what is known stays"

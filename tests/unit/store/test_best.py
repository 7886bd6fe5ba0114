"""Answers of the store: the best of each layer, lists of trials, names."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from autotune.devices.device import DeviceInfo
from autotune.errors import StoreError
from autotune.problem import Layer
from autotune.store import Finals, Store, Verdict
from autotune.trial import Outcome

from .builders import (
    CONV1,
    CONV2,
    DRIVER_590,
    H200,
    HOST,
    config_of,
    correct,
    failed,
    open_scope,
    run_trial,
    source_of,
    study_of,
    timing_of,
)


def test_the_smallest_median_of_a_correct_trial_is_best(store: Store) -> None:
    scope = open_scope(store)
    for number, median_us in enumerate((30.0, 10.0, 20.0, 10.0)):
        run_trial(store, scope, correct(number, median_us))
    wrong = dataclasses.replace(correct(4, 1.0), outcome=Outcome.WRONG_RESULT)
    run_trial(store, scope, wrong)
    run_trial(store, scope, failed(5))
    store.trials.begin(scope, 6, config_of(6))
    (best,) = store.best.list()
    assert (best.name, best.median_us, best.decided_by, best.row.trial.number) == ("lenet.conv1", 10.0, "median", 1)
    assert best.gflops == pytest.approx(CONV1.problem.flops / 10.0 / 1e3)
    assert store.trials.history(scope)[4] == wrong, "a wrong trial keeps its time"


def test_finals_win_over_medians_and_the_latest_finals_win(store: Store) -> None:
    scope = open_scope(store)
    for number, median_us in enumerate((10.0, 11.0, 12.0)):
        run_trial(store, scope, correct(number, median_us))
    store.finals.add(
        scope,
        Finals(
            winner=2,
            timings=((0, timing_of(11.5)), (2, timing_of(11.2))),
            verdicts=(Verdict("default", "win", 11.2, 11.5, against_number=0), Verdict("cudnn", "tie", 11.2, 11.3)),
        ),
    )
    (best,) = store.best.list()
    assert (best.row.trial.number, best.decided_by, best.median_us) == (2, "finals", 11.2)
    assert best.row.median_us == 12.0
    run_trial(store, scope, correct(3, 1.0))
    assert store.best.list()[0].row.trial.number == 2
    store.finals.add(scope, Finals(winner=1, timings=()))
    (best,) = store.best.list()
    assert (best.row.trial.number, best.decided_by, best.median_us) == (1, "finals", 11.0)
    verdicts = "SELECT against, verdict, number FROM verdicts LEFT JOIN trials ON trials.id = against_trial_id"
    assert store.query(verdicts).rows == (("default", "win", 0), ("cudnn", "tie", None))


@pytest.fixture
def hold(store: Store) -> Callable[..., None]:
    """Stores the finals of a study: the time of each kernel, by its text; the first is the winner."""
    taken: Counter[str] = Counter()

    def held(study: str, *, launch: Literal["graph", "stream"] = "graph", **times_us: float) -> None:
        scope, timings = open_scope(store, study=study), []
        for text, time_us in times_us.items():
            trial = correct(taken[study], 300.0, source=(source := source_of(config_of(0), text=text)))
            run_trial(store, scope, trial, source)
            timings.append((trial.number, dataclasses.replace(timing_of(time_us), launch=launch)))
            taken[study] += 1
        store.finals.add(scope, Finals(winner=timings[0][0], timings=tuple(timings)))

    return held


def best_time(store: Store) -> tuple[str, float]:
    """The best kernel of the only layer; the function and the view agree."""
    (best,) = store.best.list()
    assert store.query("SELECT trial_id, median_us FROM best").rows == ((best.row.id, best.median_us),)
    return best.row.study, best.median_us


def test_finals_of_another_study_say_nothing_of_kernels_that_were_not_in_them(
    store: Store, hold: Callable[..., None]
) -> None:
    hold("whole", fast=25.0, slow=62.0)
    hold("narrow", slow=61.7)
    assert best_time(store) == ("whole", 25.0)
    hold("narrow", fastest=24.0, slow=61.7)
    assert best_time(store) == ("narrow", 24.0)
    hold("narrow", slow=61.7)
    assert best_time(store) == ("whole", 25.0), "a study's latest finals are what it says"


def test_finals_in_which_the_winner_of_others_took_part_decide(store: Store, hold: Callable[..., None]) -> None:
    hold("whole", fast=25.0, slow=62.0)
    hold("later", other=26.0, fast=26.5)
    assert best_time(store) == ("later", 26.0), "side by side the other was faster, both slower than in March"
    hold("whole", fast=25.5, slow=62.0)
    assert best_time(store) == ("whole", 25.5), "whose fast was faster than the other when that won"


def test_finals_with_launch_gaps_come_last_below_200_us(store: Store, hold: Callable[..., None]) -> None:
    hold("many launches", old=20.0, launch="stream")
    hold("longer", other=2000.0, launch="stream")
    assert best_time(store) == ("many launches", 20.0)
    hold("graph", new=25.0)
    assert best_time(store) == ("graph", 25.0)
    hold("long", new=250.0)
    hold("graph", other=260.0)
    assert best_time(store) == ("long", 250.0)
    hold("many launches", old=220.0, launch="stream")
    assert best_time(store) == ("many launches", 220.0)


def test_finals_name_correct_trials(store: Store) -> None:
    scope = open_scope(store)
    run_trial(store, scope, failed(0))
    with pytest.raises(StoreError, match=r"lenet\.conv1: finals name trial 0"):
        store.finals.add(scope, Finals(winner=0, timings=()))


def test_devices_classes_determinism_and_policies_do_not_mix(store: Store) -> None:
    cold = open_scope(store)
    run_trial(store, cold, correct(0, 10.0))
    run_trial(store, cold, correct(1, 6.0, accuracy="tf32"))
    run_trial(store, cold, correct(2, 8.0, deterministic=False))
    run_trial(store, open_scope(store, measurement_mode="hot"), correct(0, 5.0))
    run_trial(store, open_scope(store, device=HOST), correct(0, 1.0))
    rows = store.best.list("lenet.conv1")
    assert [
        (r.row.device.kind, r.row.trial.accuracy, r.row.trial.deterministic, r.row.measurement_mode) for r in rows
    ] == [
        ("cuda", "fp32", False, "cold"),
        ("cuda", "fp32", True, "cold"),
        ("cuda", "fp32", True, "hot"),
        ("cuda", "tf32", True, "cold"),
        ("host", "fp32", True, "cold"),
    ]
    assert [row.median_us for row in rows] == [8.0, 10.0, 5.0, 6.0, 1.0]
    assert [row.median_us for row in store.best.list(kind="host")] == [1.0]
    assert [row.median_us for row in store.best.list(accuracy="tf32", kind="cuda")] == [6.0]


def test_an_upgraded_driver_leaves_the_earlier_best_in_place(store: Store) -> None:
    run_trial(store, open_scope(store), correct(0, 10.0))
    run_trial(store, open_scope(store, environment=DRIVER_590), correct(0, 12.0))
    assert [(row.median_us, row.row.environment.driver) for row in store.best.list()] == [(10.0, "580.159")]


def test_a_layer_is_its_shape_whatever_its_name(store: Store) -> None:
    run_trial(store, open_scope(store), correct(0, 10.0))
    renamed = Layer("first", CONV1.problem, count=3)
    other_n = Layer("small", CONV1.problem.with_runtime(1))
    store.studies.begin(study_of("copy", [renamed, other_n]))
    (best,) = store.best.list("copy")
    assert (best.name, best.layer, best.row.name) == ("copy.first", renamed, "lenet.conv1")


def test_two_layers_of_one_shape_share_trials_and_each_has_a_best(store: Store) -> None:
    twins = (CONV1, Layer("twin", CONV1.problem))
    key = store.studies.begin(study_of("twins", twins))
    first, second = (open_scope(store, study="twins", layer=layer) for layer in twins)
    del key
    run_trial(store, first, correct(0, 10.0))
    store.studies.begin(study_of("twins", twins))
    assert len(store.trials.history(second)) == 1
    assert [row.name for row in store.best.list("twins")] == ["twins.conv1", "twins.twin"]
    assert len(store.trials.list("twins")) == 1
    assert len(store.query("SELECT * FROM results").rows) == 1


def test_names_stand_for_studies_and_layers(store: Store) -> None:
    for layer, median_us in ((CONV1, 10.0), (CONV2, 20.0)):
        run_trial(store, open_scope(store, layer=layer), correct(0, median_us))
        run_trial(store, open_scope(store, study="net.v2", layer=layer), correct(0, median_us))
    assert [row.name for row in store.best.list("lenet")] == ["lenet.conv1", "lenet.conv2"]
    assert [row.name for row in store.trials.list("net.v2")] == ["net.v2.conv1", "net.v2.conv2"]
    assert [row.name for row in store.trials.list("net.v2.conv2")] == ["net.v2.conv2"]
    assert [row.name for row in store.trials.list("conv2")] == ["lenet.conv2", "net.v2.conv2"]
    assert len(store.trials.list()) == 4
    assert [(row.name, row.trials) for row in store.studies.layers("lenet")] == [
        ("lenet.conv1", 1),
        ("lenet.conv2", 1),
    ]


def test_a_wrong_name_says_what_there_is(path: Path, store: Store) -> None:
    with pytest.raises(StoreError, match="no study or layer 'lenet'; the database has none yet"):
        store.best.list("lenet")
    store.studies.begin(study_of())
    with pytest.raises(StoreError) as caught:
        store.trials.list("lenet.conv3")
    assert str(caught.value) == f"{path}: no study or layer 'lenet.conv3'; it has lenet.conv1, lenet.conv2"
    with pytest.raises(StoreError, match=r"no study or layer 'resnet'; it has lenet$"):
        store.studies.layers("resnet")
    with pytest.raises(StoreError, match=r"no study or layer 'LENET'; it has lenet$"):
        store.studies.layers("LENET")
    for letter in "abcdefghijk":
        store.studies.begin(study_of(letter))
    with pytest.raises(StoreError, match=r"it has a, b, c, d, e, f, g, h, i, j and 2 more: `autotune studies`$"):
        store.studies.layers("0")


def test_trials_are_filtered_sorted_and_limited(store: Store) -> None:
    scope = open_scope(store)
    for number, median_us in enumerate((30.0, 10.0, 20.0)):
        run_trial(store, scope, correct(number, median_us))
    run_trial(store, scope, failed(3))
    run_trial(store, open_scope(store, device=HOST), correct(0, 5.0))

    def numbers(**how: object) -> list[int]:
        return [row.trial.number for row in store.trials.list("lenet", kind="cuda", **how)]  # type: ignore[arg-type]

    assert numbers() == [0, 1, 2, 3]
    assert numbers(sort="median") == [1, 2, 0, 3]
    assert numbers(sort="median", outcome="correct", limit=2) == [1, 2]
    assert numbers(outcome="compile") == [3]
    for sort in ("registers", "error", "started"):
        assert sorted(numbers(sort=sort)) == [0, 1, 2, 3]
    with pytest.raises(StoreError, match="sort 'speed': expected one of number, median"):
        numbers(sort="speed")
    with pytest.raises(StoreError, match="outcome 'fine': expected one of running, correct"):
        numbers(outcome="fine")


def test_the_views_say_what_the_functions_say(store: Store) -> None:
    source = source_of(config_of(0))
    run_trial(store, open_scope(store), correct(0, 10.0, source=source), source)
    run_trial(store, open_scope(store, layer=CONV2), correct(0, 20.0, family="implicit_gemm"))
    run_trial(store, open_scope(store, layer=CONV2), failed(1))
    columns = "study, layer, number, device, template, outcome, median_us, q1_us, gflops, source_hash"
    assert store.query(f"SELECT {columns} FROM results").rows == tuple(
        (
            *(row.study, row.layer.name, row.trial.number, row.device.name, row.trial.config.template),
            *(row.trial.outcome, row.median_us, row.trial.timing.q1_us if row.trial.timing else None),
            *(row.gflops, row.trial.source_hash),
        )
        for row in store.trials.list()
    )
    assert store.query("SELECT layer, n, k, epilogue, device, median_us, gflops, decided_by FROM best").rows == tuple(
        (
            *(
                row.layer.name,
                row.layer.problem.runtime_size,
                row.layer.problem.values["k"],
                row.layer.problem.values["epilogue"],
            ),
            *(H200.name, row.median_us, row.gflops, row.decided_by),
        )
        for row in store.best.list()
    )


def test_an_answer_for_a_device_says_how_well_it_fits(store: Store) -> None:
    renamed = dataclasses.replace(H200, name="NVIDIA H200 NVL", memory_bytes=141_000_000_000)
    smaller = dataclasses.replace(H200, sm_count=114)
    run_trial(store, open_scope(store), correct(0, 10.0))
    run_trial(store, open_scope(store, layer=CONV2), correct(0, 20.0))
    run_trial(store, open_scope(store, device=renamed), correct(0, 11.0))

    def best(device: DeviceInfo) -> list[tuple[str, str, float]]:
        return [(row.layer.name, row.match, row.median_us) for row in store.best.list("lenet", device)]

    assert best(H200) == [("conv1", "exact", 10.0), ("conv2", "exact", 20.0)]
    assert best(renamed) == [("conv1", "exact", 11.0), ("conv2", "device class", 20.0)]
    assert best(smaller) == best(HOST) == [], "another SM count is another class"
    assert {row.match for row in store.best.list("lenet")} == {"exact"}


def test_a_problem_is_asked_about_whatever_it_is_called(store: Store) -> None:
    run_trial(store, open_scope(store), correct(0, 10.0))
    run_trial(store, open_scope(store, study="other"), correct(0, 9.0))
    run_trial(store, open_scope(store, layer=CONV2), correct(0, 20.0))
    (best,) = store.best.list(CONV1.problem, H200)
    assert (best.name, best.median_us, best.match) == ("other.conv1", 9.0, "exact")
    assert store.best.list(CONV1.problem.with_runtime(7), H200) == ()
    assert store.best.list(CONV1.problem, kind="host") == ()
    assert [row.median_us for row in store.trials.list(CONV1.problem)] == [10.0, 9.0]
    assert store.trials.list(CONV1.problem.with_runtime(7)) == ()

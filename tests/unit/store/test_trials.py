"""Trials are read as they were stored; a study resumes; nothing is evaluated twice."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.devices.device import Rate
from autotune.errors import StoreError
from autotune.problem import Conv2dProblem, Layer, make_problem
from autotune.store import Store, TemplateRecord, merge
from autotune.store.schema.column_kinds import seven_digits
from autotune.trial import (
    ACCURACY_CLASSES,
    LEAST,
    MOST,
    Config,
    ErrorStats,
    Outcome,
    Phases,
    Resources,
    Timing,
    Trial,
)

from .builders import (
    CONV1,
    CONV2,
    DIRECT,
    DRIVER_580,
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


def test_a_trial_comes_back_as_it_went_in(path: Path, store: Store) -> None:
    scope = open_scope(store)
    source = source_of(config_of(0))
    trial = correct(0, 880.5, source=source)
    run_trial(store, scope, trial, source)
    run_trial(store, scope, failed(1))
    own = dataclasses.replace(source_of(config_of(2)), error_factor=4, flops=1000)
    run_trial(store, scope, correct(2, 881.0, source=own), own)
    store.close()
    with Store(path) as again:
        assert again.trials.history(open_scope(again))[:2] == (trial, failed(1))
        assert again.sources.get(source.hash) == source
        assert again.sources.get(own.hash) == own
        assert again.sources.get("0" * 64) is None


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
numbers = st.floats(0, 1e12, allow_nan=False).map(seven_digits)
times = st.floats(LEAST, MOST)
values = st.one_of(st.integers(-(2**40), 2**40), texts, st.booleans())
resources = st.builds(Resources, *(st.integers(0, 2**31),) * 4)
errors = st.builds(ErrorStats, numbers, numbers)
timings = st.builds(
    Timing,
    st.lists(numbers, max_size=5).map(tuple),
    *(times, numbers, numbers),
    st.sampled_from(["cold", "hot"]),
    sm_clocks_mhz=st.lists(numbers, max_size=5).map(tuple),
    discarded=st.integers(0, 9),
    throttled=st.integers(0, 9),
    passes=st.integers(1, 1000),
    power_w=st.none() | numbers,
    temperature_c=st.none() | numbers,
)
finished = st.builds(
    Trial,
    number=st.just(0),
    config=st.builds(Config.of, st.just("direct"), st.dictionaries(texts, values, max_size=4)),
    outcome=st.sampled_from([outcome for outcome in Outcome if outcome != Outcome.RUNNING]),
    reason=texts,
    message=texts,
    accuracy=st.sampled_from(("", *ACCURACY_CLASSES)),
    deterministic=st.booleans(),
    resources=resources,
    smem_bytes=st.integers(0, 2**20),
    occupancy=st.none() | st.floats(0, 1),
    timing=st.none() | timings,
    error=st.none() | errors,
    phases=st.builds(Phases, *(numbers,) * 5),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trial=finished)
def test_any_finished_trial_survives_the_round_trip(store: Store, trial: Trial) -> None:
    scope = open_scope(store, fresh=True)
    store.trials.add(scope, trial)
    assert store.trials.history(scope) == (trial,)


@pytest.mark.parametrize(
    "text",
    ['it\'s "quoted"; DROP TABLE trials;--', "tab\tnew\nline\r\x01\x1b[31m", "x" * 1_000_000, "é\u2028\U0001f600"],
    ids=["quotes", "control", "long", "unicode"],
)
def test_any_text_is_kept_in_every_field(store: Store, text: str) -> None:
    layer = Layer(text, CONV1.problem)
    environment = dataclasses.replace(DRIVER_580, driver=text, toolkit=text, flags=text, attributes={text: text})
    device = dataclasses.replace(H200, name=text)
    record = dataclasses.replace(study_of(text, [layer]), text=text)
    scope = store.scopes.open(
        store.studies.begin(record), layer, device, environment, text, [TemplateRecord(text, text, text)]
    )
    config = Config.of(text, {text: text})
    source = dataclasses.replace(source_of(config, text=text), config=config)
    trial = Trial(0, config, Outcome.RUNTIME, reason=text, message=text, source_hash=source.hash)
    store.trials.add(scope, trial, source)
    assert store.trials.history(scope) == (trial,)
    (row,) = store.trials.list(text)
    assert (row.study, row.layer, row.device, row.environment, row.measurement_mode) == (
        text,
        layer,
        device,
        environment,
        text,
    )
    assert store.sources.get(source.hash) == source


def test_what_utf8_and_the_sqlite_shell_cannot_carry_is_escaped(store: Store) -> None:
    scope = open_scope(store)
    store.trials.add(scope, failed(0, message="cut\udcff short\0here"))
    assert store.trials.history(scope)[0].message == "cut\\udcff short\\x00here"


def test_what_is_not_a_number_is_null(path: Path, store: Store) -> None:
    scope = open_scope(store)
    trial = dataclasses.replace(
        failed(0, Outcome.WRONG_RESULT), error=ErrorStats(math.inf, math.nan), occupancy=math.nan
    )
    store.trials.add(scope, trial)
    columns = "error_over_bound, error_max_abs, occupancy"
    assert store.query(f"SELECT {columns} FROM trials").rows == ((None, None, None),)
    assert store.trials.history(scope)[0].error is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_time_that_is_not_a_number_is_refused_and_the_trial_still_runs(store: Store, bad: float) -> None:
    scope = open_scope(store)
    key = store.trials.begin(scope, 0, config_of(0))
    trial = dataclasses.replace(correct(0, 1.0), timing=dataclasses.replace(timing_of(1.0), samples_us=(bad,)))
    with pytest.raises(StoreError, match="CHECK constraint failed: samples_us"):
        store.trials.end(key, trial)
    assert list(store.trials.suspects(scope)) == [key]


def test_a_layer_too_large_for_sqlite_is_refused(store: Store) -> None:
    huge = Layer("huge", Conv2dProblem(n=2**31 - 1, c=2**20, h=2**15, w=2**15, k=2**20, r=3, s=3))
    with pytest.raises(StoreError, match="too large to store"):
        store.studies.begin(study_of("s", [huge]))


def test_a_killed_trial_is_a_suspect_until_it_ends(path: Path, store: Store) -> None:
    scope = open_scope(store)
    source = source_of(config_of(0))
    store.trials.begin(scope, 0, config_of(0), source)
    store.close()
    with Store(path) as again:
        scope = open_scope(again)
        assert again.trials.history(scope) == ()
        (suspect,) = again.trials.suspects(scope)
        assert (suspect.attempts, suspect.config, suspect.source_hash) == (1, config_of(0), source.hash)
        assert again.trials.next_number(scope) == 1
        key = again.trials.begin(scope, 0, config_of(0), source)
        assert again.trials.suspects(scope)[0].attempts == 2
        again.trials.end(key, correct(0, 5.0, source=source))
        assert again.trials.suspects(scope) == ()
        assert [row.attempts for row in again.trials.list()] == [2]


def test_a_number_is_stored_once(store: Store) -> None:
    scope = open_scope(store)
    run_trial(store, scope, correct(3, 1.0))
    with pytest.raises(StoreError, match=r"lenet\.conv1: trial 3 is stored already"):
        store.trials.begin(scope, 3, config_of(3))
    store.trials.begin(scope, 4, config_of(4))
    with pytest.raises(StoreError, match="trial 4 is stored already"):
        store.trials.begin(scope, 4, config_of(5))
    assert store.trials.next_number(scope) == 5


def test_a_trial_ends_once(store: Store) -> None:
    scope = open_scope(store)
    key = store.trials.begin(scope, 0, config_of(0))
    store.trials.end(key, correct(0, 1.0))
    with pytest.raises(StoreError, match="trial 0 has ended already"):
        store.trials.end(key, correct(0, 2.0))
    assert store.trials.list()[0].median_us == 1.0


def test_a_study_resumes_and_fresh_starts_anew_without_deleting(store: Store) -> None:
    first = open_scope(store)
    run_trial(store, first, correct(0, 10.0))
    assert open_scope(store).study == first.study
    fresh = open_scope(store, fresh=True)
    assert (fresh.study.generation, store.trials.history(fresh)) == (2, ())
    assert open_scope(store).study == fresh.study
    run_trial(store, fresh, correct(0, 20.0))
    assert [row.median_us for row in store.trials.list("lenet")] == [20.0]
    assert [row.median_us for row in store.trials.list("lenet", generations="all")] == [10.0, 20.0]
    assert [(study.generation, study.trials) for study in store.studies.list()] == [(1, 1), (2, 1)]
    assert [row.median_us for row in store.best.list("lenet.conv1")] == [10.0]


def test_an_edited_study_keeps_the_trials_of_the_layer_it_had(store: Store) -> None:
    run_trial(store, open_scope(store), correct(0, 10.0))
    wider = Layer("conv1", make_problem(CONV1.problem.operation, {**CONV1.problem.values, "k": 24}), count=5)
    store.studies.begin(dataclasses.replace(study_of("lenet", [CONV2, wider], seed=9), text="edited"))
    assert [(row.name, row.layer) for row in store.studies.layers("lenet")] == [
        ("lenet.conv2", CONV2),
        ("lenet.conv1", wider),
    ]
    assert store.trials.list() == store.trials.list("lenet") == store.trials.list("lenet.conv1") == (), (
        "they are of another problem"
    )
    for what in (None, "lenet", "conv1"):
        assert [row.problem for row in store.trials.list(what, generations="all")] == [CONV1.problem]
    assert [row.name for row in store.trials.list(CONV1.problem)] == ["lenet.conv1"]
    assert store.best.list("lenet") == ()
    (study,) = store.studies.list()
    assert (study.seed, study.text, study.layers) == (9, "edited", 2)
    run_trial(store, open_scope(store, layer=wider), correct(0, 12.0))
    assert [row.problem for row in store.trials.list("lenet.conv1")] == [wider.problem]
    store.studies.begin(study_of("lenet", [CONV2]))
    assert len(store.trials.list("lenet.conv1")) == 2, "nothing else is left of what is asked for"


@pytest.mark.parametrize(
    "other",
    [
        {"device": HOST},
        {"device": dataclasses.replace(H200, sm_count=114)},
        {"environment": DRIVER_590},
        {"measurement_mode": "hot"},
        {"layer": CONV2},
        {"study": "other"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_scopes_do_not_mix(store: Store, other: dict[str, object]) -> None:
    run_trial(store, open_scope(store), correct(0, 10.0))
    assert store.trials.history(open_scope(store, **other)) == ()  # type: ignore[arg-type]


def test_attributes_are_recorded_and_not_matched(store: Store) -> None:
    run_trial(store, open_scope(store), correct(0, 10.0))
    elsewhere = dataclasses.replace(DRIVER_580, attributes={"uuid": "GPU-2"})
    with Store(store.path) as second:
        scope = open_scope(second, environment=elsewhere)
        assert len(second.trials.history(scope)) == 1
        run_trial(second, scope, correct(1, 10.0))
    assert [row.environment for row in store.trials.list()] == [DRIVER_580, elsewhere]


def test_a_known_source_is_reused_across_studies(store: Store) -> None:
    source = source_of(config_of(0))
    first = open_scope(store)
    assert store.known.get(first, source.hash) is None
    key = store.trials.begin(first, 0, config_of(0), source)
    assert store.known.get(first, source.hash) is None, "it has not finished"
    assert not store.known.of_other_studies(first)
    store.trials.end(key, correct(0, 10.0, source=source))
    second = open_scope(store, study="other")
    known = store.known.get(second, source.hash)
    assert known is not None
    assert (known.name, known.median_us) == ("lenet.conv1", 10.0)
    assert store.known.of_other_studies(second) == {source.hash: known.trial}
    reused = store.known.reuse(second, 7, config_of(7), known)
    assert (reused.number, reused.config, reused.median_us, reused.phases) == (7, config_of(7), 10.0, Phases())
    assert store.trials.history(second) == (reused,)
    assert [(row.study, row.reused) for row in store.trials.list()] == [("lenet", False), ("other", True)]
    newest = store.known.get(second, source.hash)
    assert newest is not None
    assert newest.id == known.id, "a copy is not a measurement"


@pytest.mark.parametrize("other", [{"device": HOST}, {"environment": DRIVER_590}, {"measurement_mode": "hot"}])
def test_a_source_is_not_known_elsewhere(store: Store, other: dict[str, object]) -> None:
    source = source_of(config_of(0))
    run_trial(store, open_scope(store), correct(0, 10.0, source=source), source)
    elsewhere = open_scope(store, **other)  # type: ignore[arg-type]
    assert store.known.get(elsewhere, source.hash) is None
    assert not store.known.of_other_studies(elsewhere)


def test_a_fresh_study_reuses_only_what_was_measured_since(store: Store) -> None:
    old, new = source_of(config_of(0)), source_of(config_of(1))
    run_trial(store, open_scope(store, study="other"), correct(0, 10.0, source=old), old)
    fresh = open_scope(store, fresh=True)
    run_trial(store, open_scope(store, study="other"), correct(1, 10.0, source=new), new)
    for scope in (fresh, open_scope(store)):  # also when it is resumed
        assert store.known.get(scope, old.hash) is None
        assert store.known.get(scope, new.hash) is not None
        assert set(store.known.of_other_studies(scope)) == {new.hash}


def test_quarantine_holds_for_one_device_and_environment(store: Store) -> None:
    scope = open_scope(store)
    source = source_of(config_of(0))
    run_trial(store, scope, failed(0, Outcome.TIMEOUT), source)
    store.quarantine.add(scope, source.hash, "hang", "10 s")
    store.quarantine.add(scope, source.hash, "crash", "again")
    assert store.quarantine.hashes(scope) == {source.hash}
    assert store.quarantine.hashes(open_scope(store, layer=CONV2)) == {source.hash}
    assert store.quarantine.hashes(open_scope(store, environment=DRIVER_590)) == frozenset()
    assert store.query("SELECT reason FROM quarantine").rows == (("crash",),)


def test_the_best_of_the_methods_of_the_latest_calibration_bounds(store: Store) -> None:
    wgmma, mma = Rate("fp16", "wgmma m64n256k16 f16", 8.0e14), Rate("fp16", "mma.sync m16n8k16", 6.4e14)
    store.rates.add(H200, DRIVER_580, [wgmma, mma, Rate("fp32", "FFMA", 6.0e13)])
    assert store.rates.best(H200) == {"fp16": 8.0e14, "fp32": 6.0e13}
    assert set(store.rates.list(H200)) == {wgmma, mma, Rate("fp32", "FFMA", 6.0e13)}
    store.rates.add(H200, DRIVER_590, [mma])
    assert store.rates.best(H200) == {"fp16": 6.4e14, "fp32": 6.0e13}, "the newer calibration knows of no wgmma"


def test_rates_and_noise_floors_are_the_latest_of_their_device(store: Store) -> None:
    assert store.rates.best(H200) == {}
    store.rates.add(H200, DRIVER_580, [Rate("copy", "", 4.0e12), Rate("fp32", "FFMA", 6.0e13)])
    store.rates.add(H200, DRIVER_590, [Rate("copy", "", 4.2e12)])
    store.rates.add(HOST, DRIVER_580, [Rate("copy", "", 1.0e10)])
    assert store.rates.best(H200) == {"copy": 4.2e12, "fp32": 6.0e13}
    with pytest.raises(StoreError, match=r"NOT NULL constraint failed: rates\.per_s"):
        store.rates.add(H200, DRIVER_580, [Rate("copy", "", 1.0), Rate("fill", "", math.nan)])
    assert store.rates.best(H200)["copy"] == 4.2e12, "nothing of a bad set is stored"
    assert store.noise_floors.latest(H200, "cold") is None
    store.noise_floors.add(H200, DRIVER_580, "cold", 0.5, 0.01)
    store.noise_floors.add(H200, DRIVER_580, "cold", 0.25, 0.005)
    floor = store.noise_floors.latest(H200, "cold")
    assert floor is not None
    assert (floor.noise_us, floor.noise_fraction) == (0.25, 0.005)
    assert store.noise_floors.latest(HOST, "cold") is None


def test_a_device_gets_the_limits_known_last(store: Store) -> None:
    open_scope(store)
    larger = dataclasses.replace(H200, l2_bytes=1, grid_limits=(1, 2, 3), block_limits=(4, 5, 6))
    run_trial(store, open_scope(store, device=larger), correct(0, 1.0))
    assert [row.device for row in store.trials.list()] == [larger]


def test_a_new_version_of_a_template_is_a_row_of_its_own(store: Store) -> None:
    key = store.studies.begin(study_of())
    for number, version in enumerate((DIRECT, dataclasses.replace(DIRECT, hash="99" * 32))):
        scope = store.scopes.open(key, CONV1, H200, DRIVER_580, "cold", [version])
        run_trial(store, scope, correct(number, 1.0))
    assert [row.template_hash for row in store.trials.list()] == ["ab" * 32, "99" * 32]


def test_only_trials_under_the_same_circumstances_are_like_a_trial(path: Path, store: Store, tmp_path: Path) -> None:
    run_trial(store, open_scope(store), correct(0, 10.0))
    run_trial(store, open_scope(store), failed(1))
    run_trial(store, open_scope(store, study="other"), correct(2, 12.0))
    store.trials.begin(open_scope(store), 3, config_of(3))
    for number, elsewhere in enumerate(
        (
            open_scope(store, layer=CONV2),
            open_scope(store, device=HOST),
            open_scope(store, environment=DRIVER_590),
            open_scope(store, measurement_mode="hot"),
        ),
        10,
    ):
        run_trial(store, elsewhere, correct(number, 20.0))
    with Store(tmp_path / "other.db") as foreign:
        run_trial(foreign, open_scope(foreign, study="foreign"), correct(4, 11.0))
    merge(tmp_path / "other.db", path)
    (best,) = store.best.list(CONV1.problem, H200)[:1]
    assert best.row.trial.number == 0
    assert [row.trial.number for row in store.trials.like(best.row)] == [0, 1, 2]

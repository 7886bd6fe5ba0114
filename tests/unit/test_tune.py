"""The whole pipeline on the null device: budgets, resuming, reuse, and unexpected ends."""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from autotune.api.run_plan import check_study
from autotune.compilation.compile import Binary
from autotune.devices.device import DeviceInfo, Environment
from autotune.errors import Disproved, NoTemplate, StudyError
from autotune.evaluation.null import NullEvaluator, predicted_us
from autotune.family.source import KernelSource
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_template, template_files
from autotune.measurement.benchmark import summarise
from autotune.problem import Conv2dProblem, Layer
from autotune.store import Store, TrialRow
from autotune.study import Study
from autotune.trial import Config, Measured, Resources
from autotune.tuning.trial_log import Progress
from autotune.tuning.tune import tune
from autotune.workers.worker import FinalsRequest, FinalsTimings

from .tiny import SMALL, tiny, write_family

FAILING = "compile=0.15,crash=0.1,illegal_address=0.05,hang=0.1,wrong=0.1"
FEASIBLE = 48  # of the tiny family's 80 configs, counted by hand in the test of enumeration


class Device(NullEvaluator):
    """The null device with a count of its runs, and a way to fail at once."""

    def __init__(self, options: str = "", *, before: Callable[[int], None] = lambda count: None) -> None:
        super().__init__(options)
        self.ran: list[KernelSource] = []
        self._before = before

    def evaluate(self, source: KernelSource, binary: Binary, *, cache: str, best_us: float | None) -> Measured:
        """Count, then do the same as the null device."""
        self._before(len(self.ran))
        self.ran.append(source)
        return super().evaluate(source, binary, cache=cache, best_us=best_us)


class Elsewhere(Device):
    """The same device under another driver."""

    @property
    def environment(self) -> Environment:
        """A newer one."""
        return Environment(driver="other", toolkit="none", flags="")


class Parallel(Device):
    """Two null devices at once, with several configs in flight."""

    @property
    def ahead(self) -> int:
        """Several compilations."""
        return 5

    @property
    def slots(self) -> int:
        """Two devices."""
        return 2


class Wide(Device):
    """Twenty null devices at once, with the largest number that were busy together.

    The first evaluations wait until `expected` of them run, so that a busy machine runs as many.
    """

    def __init__(self, options: str, *, expected: int = 1) -> None:
        super().__init__(options)
        self.most = self._busy = 0
        self._expected = expected
        self._changed = threading.Condition()

    @property
    def ahead(self) -> int:
        """As many as there are devices."""
        return 20

    @property
    def slots(self) -> int:
        """Twenty."""
        return 20

    def evaluate(self, source: KernelSource, binary: Binary, *, cache: str, best_us: float | None) -> Measured:
        """Count while it runs."""
        with self._changed:
            self._busy += 1
            self.most = max(self.most, self._busy)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most >= self._expected, timeout=10.0)
        try:
            return super().evaluate(source, binary, cache=cache, best_us=best_us)
        finally:
            with self._changed:
                self._busy -= 1


class Slow(Device):
    """A null device with many compilers, which first answers when nothing new has been compiled for a while."""

    def __init__(self) -> None:
        super().__init__("")
        self.compiled = 0
        self.before_the_first_answer: int | None = None

    @property
    def ahead(self) -> int:
        """As with sixteen compilers."""
        return 20

    def compile(self, source: KernelSource) -> Future[Binary]:
        """Count, then do the same as the null device."""
        self.compiled += 1
        return super().compile(source)

    def evaluate(self, source: KernelSource, binary: Binary, *, cache: str, best_us: float | None) -> Measured:
        """Wait the first time until the compilers are idle."""
        if self.before_the_first_answer is None:
            compiled = 0
            while compiled != self.compiled:
                compiled = self.compiled
                time.sleep(0.5)
            self.before_the_first_answer = compiled
        return super().evaluate(source, binary, cache=cache, best_us=best_us)


class NotNull(Device):
    """A null device that claims to be a real one."""

    @property
    def info(self) -> DeviceInfo:
        """As if kernels really ran on the host."""
        return dataclasses.replace(super().info, kind="host")


class Spilling(Device):
    """A null device that claims to be a GPU, for which the compiler runs out of registers."""

    spill_bytes = 0

    @property
    def info(self) -> DeviceInfo:
        """As if kernels ran on a GPU."""
        return dataclasses.replace(super().info, kind="cuda")

    def compile(self, source: KernelSource) -> Future[Binary]:
        """A binary that needs memory for its registers."""
        future: Future[Binary] = Future()
        resources = Resources(registers=64, spill_bytes=self.spill_bytes)
        future.set_result(dataclasses.replace(super().compile(source).result(), resources=resources))
        return future


def small(**changes: object) -> Study:
    """A study of one small layer."""
    study = Study("small", (Layer("one", SMALL),), trials=12, seed=3, templates=("tiny",))
    return dataclasses.replace(study, **changes)  # type: ignore[arg-type]


@pytest.fixture
def families(tmp_path: Path) -> Mapping[str, KernelTemplate]:
    """The tiny family and a similar one."""
    other = write_family(tmp_path, ("float sum = 0.0f", "float sum = 0.f"), name="other")
    return {"tiny": tiny(tmp_path), "other": load_template(other)}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty database."""
    with Store(tmp_path / "one.db") as opened:
        yield opened


def told(rows: Sequence[TrialRow]) -> list[tuple[object, ...]]:
    """The fields that a resumed and an uninterrupted run share: all except dates and wall-clock times."""
    return [
        (
            row.name,
            row.trial.number,
            row.trial.config,
            row.trial.outcome,
            row.trial.reason,
            row.trial.message,
            row.trial.timing,
            row.trial.source_hash,
        )
        for row in rows
    ]


def evaluated(rows: Sequence[TrialRow]) -> list[TrialRow]:
    """Trials that cost an evaluation."""
    return [row for row in rows if row.trial.compiled]


def test_the_budget_counts_distinct_evaluated_configs(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    device = Device(FAILING)
    (result,) = tune(small(), families, device, store)
    assert (result.evaluated, result.new, result.stopped) == (12, 12, "budget")
    rows = evaluated(store.trials.list("small"))
    assert len(rows) == len({row.trial.config for row in rows}) == len({row.trial.source_hash for row in rows}) == 12
    failures = Counter(row.trial.outcome.value for row in rows if row.trial.outcome != "correct")
    assert len(failures) >= 2
    assert sum(failures.values()) + sum(row.trial.outcome == "correct" for row in rows) == 12
    compiled = [row for row in rows if row.trial.outcome != "compile"]
    assert len(device.ran) == len(compiled)


def test_the_best_is_the_fastest_correct_trial(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    (result,) = tune(small(), families, Device(FAILING), store)
    times = [row.trial.median_us for row in store.trials.list("small") if row.trial.median_us is not None]
    assert result.best is not None
    assert result.best.median_us == min(times)
    (best,) = store.best.list("small")
    assert best.median_us == min(times)
    assert best.row.trial.config == result.best.config


def test_times_are_those_of_the_device(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    device = Device()
    tune(small(), families, device, store)
    times = {source.hash: predicted_us(source) for source in device.ran}
    for row in evaluated(store.trials.list("small")):
        assert row.trial.timing is not None
        assert row.trial.source_hash is not None
        assert row.trial.timing.median_us == times[row.trial.source_hash]


def test_every_familys_default_is_tried_first(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    tune(small(templates=None, trials=6), families, Device(), store)
    rows = evaluated(store.trials.list("small"))
    assert {row.trial.config.template for row in rows[:2]} == {"tiny", "other"}
    defaults = {"threads": 64, "turns": 1, "order": "rows", "fast": False}
    assert all(row.trial.config.params == defaults for row in rows[:2])


def test_a_space_within_the_budget_is_enumerated(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    expected = {
        (threads, turns, order, fast)
        for threads, turns, order, fast in itertools.product(
            (64, 32, 128, 256), (1, 2, 3, 4, 6), ("rows", "taps"), (False, True)
        )
        if threads * turns <= 512 and (not fast or order == "rows")
    }
    assert len(expected) == FEASIBLE
    device = Device()
    (result,) = tune(small(trials=1000), families, device, store)
    assert result.stopped == "exhausted"
    assert {tuple(source.config.params.values()) for source in device.ran} == expected
    assert result.evaluated == len(device.ran) == FEASIBLE


def test_a_space_that_time_may_cut_short_is_searched_best_first(
    tmp_path: Path, families: Mapping[str, KernelTemplate]
) -> None:
    """In order, the search would never reach the configs at its end."""
    met = []
    for limit_s in (None, 3600.0):
        with Store(tmp_path / f"{limit_s}.db") as store:
            (result,) = tune(small(trials=1000, time_budget_total_s=limit_s), families, Device(), store)
            assert result.evaluated == FEASIBLE
            met.append([row.trial.config for row in store.trials.list()])
    in_order, by_model = met
    assert set(in_order) == set(by_model)
    assert in_order != by_model


class Stop:
    """Asks for an orderly end after this many reports."""

    def __init__(self, after: int) -> None:
        self._left = after

    def observe(self, progress: Progress) -> None:
        """A trial ended."""
        self._left -= 1

    def __call__(self) -> bool:
        return self._left <= 0


def test_an_interrupt_is_heeded_while_the_spaces_of_many_layers_are_listed(
    store: Store, families: Mapping[str, KernelTemplate]
) -> None:
    study = small(layers=tuple(Layer(f"l{n}", SMALL.with_runtime(n)) for n in range(1, 10)))
    told: list[Progress] = []
    device = Device()
    results = tune(study, families, device, store, observe=told.append, stopping=lambda: len(told) >= 3)
    assert [progress.layer for progress in told if progress.phase == "listing"] == ["small.l1", "small.l2", "small.l3"]
    assert [(result.name, result.stopped) for result in results] == [("small.l1", "interrupted")]
    assert not device.ran


@pytest.mark.parametrize("sampler", ["default", "random"])
def test_resuming_is_the_same_as_running(tmp_path: Path, families: Mapping[str, KernelTemplate], sampler: str) -> None:
    study = small(sampler=sampler, templates=None, layers=(Layer("one", SMALL), Layer("two", SMALL.with_runtime(5))))
    with Store(tmp_path / "whole.db") as store:
        whole = tune(study, families, Device(FAILING), store)
        expected = told(store.trials.list("small"))
    with Store(tmp_path / "parts.db") as store:
        device = Device(FAILING)
        for reports in (0, 1, 2, 3, 5, 1, 4):
            stop = Stop(reports)
            results = tune(study, families, device, store, observe=stop.observe, stopping=stop)
            assert results[-1].stopped == "interrupted"
        parts = tune(study, families, device, store)
        assert told(store.trials.list("small")) == expected
    assert [result.best for result in parts] != [None, None]
    assert [result.best and result.best.config for result in parts] == [
        result.best and result.best.config for result in whole
    ]
    assert len(device.ran) == len({source.hash for source in device.ran}), "nothing ran twice"


class PlugPulled(BaseException):
    """The run ends at once; nothing in the pipeline expects this."""


def plug(*counts: int) -> Callable[[int], None]:
    """Fail before each of these evaluations, once."""
    left = set(counts)

    def before(count: int) -> None:
        if count in left:
            left.remove(count)
            raise PlugPulled

    return before


def test_a_trial_cut_off_while_running_is_run_again_under_its_number(
    tmp_path: Path, families: Mapping[str, KernelTemplate]
) -> None:
    with Store(tmp_path / "whole.db") as store:
        tune(small(), families, Device(FAILING), store)
        expected = told(store.trials.list("small"))
    with Store(tmp_path / "parts.db") as store:
        device = Device(FAILING, before=plug(0, 3, 4, 8))
        for _ in range(4):
            with pytest.raises(PlugPulled):
                tune(small(), families, device, store)
        (result,) = tune(small(), families, device, store)
        assert told(store.trials.list("small")) == expected
        assert result.evaluated == 12
        assert max(row.attempts for row in store.trials.list("small")) == 2


def test_a_finished_study_runs_nothing_again(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    (first,) = tune(small(), families, Device(FAILING), store)
    before = told(store.trials.list("small"))
    device = Device(FAILING)
    (again,) = tune(small(), families, device, store)
    assert (again.evaluated, again.new, again.stopped) == (12, 0, "budget")
    assert device.ran == []
    assert told(store.trials.list("small")) == before
    assert again.best is not None
    assert first.best is not None
    assert (again.best.config, again.best.median_us) == (first.best.config, first.best.median_us)
    assert again.failures == first.failures


def test_a_larger_budget_goes_on_where_the_smaller_ended(
    tmp_path: Path, families: Mapping[str, KernelTemplate]
) -> None:
    with Store(tmp_path / "whole.db") as store:
        tune(small(trials=20), families, Device(FAILING), store)
        expected = told(store.trials.list("small"))
    with Store(tmp_path / "parts.db") as store:
        for trials in (1, 7, 20):
            tune(small(trials=trials), families, Device(FAILING), store)
        assert told(store.trials.list("small")) == expected


def test_another_seed_proposes_other_configs(tmp_path: Path, families: Mapping[str, KernelTemplate]) -> None:
    found: list[list[Config]] = []
    for seed in (1, 1, 2):
        with Store(tmp_path / f"{len(found)}.db") as store:
            tune(small(seed=seed), families, Device(), store)
            found.append([row.trial.config for row in evaluated(store.trials.list("small"))])
    assert found[0] == found[1] != found[2]


def test_fresh_runs_everything_again_and_keeps_what_was(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    tune(small(), families, Device(), store)
    before = told(store.trials.list("small"))
    device = Device()
    (result,) = tune(small(), families, device, store, fresh=True)
    assert (result.new, len(device.ran)) == (12, 12)
    assert [study.generation for study in store.studies.list()] == [1, 2]
    both = store.trials.list("small", generations="all")
    assert told([row for row in both if row.generation == 1]) == before
    assert told([row for row in both if row.generation == 2]) == before, "the null device says the same again"
    resumed = Device()
    tune(small(), families, resumed, store)
    assert resumed.ran == [], "and then the new generation is the one that resumes"


def test_what_one_study_measured_another_does_not_run_again(
    store: Store, families: Mapping[str, KernelTemplate]
) -> None:
    tune(small(), families, Device(FAILING), store)
    device = Device(FAILING)
    (result,) = tune(small(name="again", warm_start=False), families, device, store)
    assert device.ran == []
    assert (result.new, result.evaluated) == (0, 12)
    assert [row[1:] for row in told(store.trials.list("again"))] == [
        row[1:] for row in told(store.trials.list("small"))
    ]
    assert all(row.reused for row in evaluated(store.trials.list("again")))
    assert not any(row.reused for row in store.trials.list("small"))


def test_another_environment_policy_or_problem_is_measured_anew(
    store: Store, families: Mapping[str, KernelTemplate]
) -> None:
    tune(small(), families, Device(), store)
    hot = dataclasses.replace(small().measure, cache="hot")
    for study, device in (
        (small(name="elsewhere"), Elsewhere()),
        (small(name="hot", measure=hot), Device()),
        (small(name="larger", layers=(Layer("one", SMALL.with_runtime(4)),)), Device()),
    ):
        (result,) = tune(study, families, device, store)
        assert result.new == len(device.ran) == 12, study.name


def test_a_note_in_a_template_costs_nothing_and_a_changed_kernel_everything(
    tmp_path: Path, store: Store, families: Mapping[str, KernelTemplate]
) -> None:
    tune(small(), families, Device(), store)
    noted = tiny(tmp_path / "noted", ("One output a thread", "An output per thread"))
    device = Device()
    tune(small(), {"tiny": noted}, device, store, fresh=False)
    assert device.ran == []
    altered = tiny(tmp_path / "altered", ("float sum = 0.0f;", "float sum = -0.0f;"))
    tune(small(name="altered"), {"tiny": altered}, device, store)
    assert len(device.ran) == 12


def test_twins_are_run_once_and_count_once(tmp_path: Path, store: Store) -> None:
    idle = ('fast    = { values = [false, true],      doc = "unroll the inner loop" }',
            'fast    = { values = [false, true],      doc = "unroll the inner loop" }\n'
            'idle    = { values = [1, 2, 3],          doc = "changes nothing" }')  # fmt: skip
    family = tiny(tmp_path, idle, ("//% if fast", "//% if fast and idle > 0"))
    device = Device()
    (result,) = tune(small(trials=1000), {"tiny": family}, device, store)
    assert result.stopped == "exhausted"
    assert (result.evaluated, result.new, len(device.ran)) == (FEASIBLE, FEASIBLE, FEASIBLE)
    rows = evaluated(store.trials.list("small"))
    assert len(rows) == 3 * FEASIBLE
    times: dict[str | None, set[float | None]] = {}
    for row in rows:
        times.setdefault(row.trial.source_hash, set()).add(row.trial.median_us)
    assert len(times) == FEASIBLE
    assert all(len(found) == 1 for found in times.values()), "a twin has its twin's time"


def test_twins_that_are_under_way_together_are_run_once(tmp_path: Path, store: Store) -> None:
    idle = ("[derived]", 'idle = { values = [1, 2, 3, 4], doc = "changes nothing" }\n[derived]')
    family = tiny(tmp_path, idle, ("//% if fast", "//% if fast and idle > 0"))
    device = Parallel()
    space = {"tiny": {"threads": (64,), "order": ("taps",)}}
    (result,) = tune(small(trials=100, space=space), {"tiny": family}, device, store)
    assert (result.evaluated, len(device.ran)) == (5, 5)
    assert len(evaluated(store.trials.list("small"))) == 4 * 5


def test_failing_everywhere_ends_with_no_best(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    (result,) = tune(small(), families, Device("hang=1"), store)
    assert result.best is None
    assert result.failures["timeout"] == 12
    assert result.stopped == "budget"
    assert store.best.list("small") == ()


def test_what_failed_is_not_asked_for_again(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    device = Device("wrong=0.7")
    tune(small(trials=FEASIBLE - 5), families, device, store)
    assert len({source.config for source in device.ran}) == len(device.ran) == FEASIBLE - 5


class Clock:
    """Seconds that pass only while a kernel runs."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def tick(self, count: int) -> None:
        """A kernel takes a second."""
        self.now_s += 1.0


def test_a_time_budget_ends_a_layer_and_resuming_goes_on(
    tmp_path: Path, families: Mapping[str, KernelTemplate]
) -> None:
    with Store(tmp_path / "whole.db") as store:
        tune(small(), families, Device(), store)
        expected = told(store.trials.list("small"))
    with Store(tmp_path / "parts.db") as store:
        study = small(time_budget_s=5.0, layers=(Layer("one", SMALL), Layer("two", SMALL.with_runtime(9))))
        for new in (5, 5, 2, 0):
            clock = Clock()
            results = tune(study, families, Device(before=clock.tick), store, clock=clock)
            assert [result.new for result in results] == [new, new], "each layer has its own time"
            assert {result.stopped for result in results} == {"time" if new == 5 else "budget"}
        assert [row for row in told(store.trials.list("small")) if row[0] == "small.one"] == expected


def test_an_interrupt_finishes_the_trial_at_hand_and_begins_no_other(
    store: Store, families: Mapping[str, KernelTemplate]
) -> None:
    asked: list[int] = []

    def interrupt(count: int) -> None:
        if count == 4:
            asked.append(count)  # while the fifth kernel runs

    study = small(layers=(Layer("one", SMALL), Layer("two", SMALL.with_runtime(9))))
    device = Device(before=interrupt)
    results = tune(study, families, device, store, stopping=lambda: bool(asked))
    assert [(result.name, result.stopped, result.new) for result in results] == [("small.one", "interrupted", 5)]
    assert len(device.ran) == 5
    assert all(row.trial.outcome != "running" for row in store.trials.list("small"))


def test_a_fifth_of_a_budget_is_under_way_at_most(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    device = Wide("delay_ms=20", expected=3)
    (result,) = tune(small(trials=15), families, device, store)
    assert (result.new, device.most) == (15, 3)


def test_progress_is_reported_with_every_phase_and_trial(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    seen: list[Progress] = []
    (result,) = tune(small(), families, Device(FAILING), store, observe=seen.append)
    assert [progress.done for progress in seen] == [0, *range(1, 13), 12, 12]
    assert [progress.phase for progress in seen] == ["start", *["search"] * 12, "finals", "search"]
    assert {progress.budget for progress in seen} == {12}
    assert {progress.layer for progress in seen} == {"small.one"}
    assert [progress.ended for progress in seen] == [False] * 14 + [True]
    seen.clear()
    tune(small(trials=5), families, Device(FAILING), store, observe=seen.append)
    assert {(progress.done, progress.budget) for progress in seen} == {(12, 12)}, "never 12 of 5"
    bests = [progress.best.median_us for progress in seen if progress.best and progress.best.median_us]
    assert bests == sorted(bests, reverse=True)
    assert seen[-1].failures == result.failures


def test_a_layer_without_a_family_stops_the_study_before_anything_is_stored(
    store: Store, families: Mapping[str, KernelTemplate]
) -> None:
    nhwc = dataclasses.replace(SMALL, layout="nhwc")
    device = Device()
    with pytest.raises(StudyError) as caught:
        tune(small(layers=(Layer("one", SMALL), Layer("two", nhwc))), families, device, store)
    assert "layer two (n3 c2 9x8 k4 3x3 f32 nhwc): no template supports it: tiny requires: layout is NCHW" in str(
        caught.value
    )
    assert device.ran == []
    assert store.studies.list() == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"templates": ("tiny", "huge")}, "small: no family named 'huge'; there are tiny, other"),
        ({"space": {"huge": {"a": (1,)}}}, "small: no family named 'huge'; there are tiny, other"),
        ({"space": {"tiny": {"a": (1,)}}}, "small: space.tiny.a: no such parameter; tiny has threads, turns, order"),
        ({"space": {"tiny": {"turns": (5,)}}}, "small: space.tiny.turns: 5 is not a value of the family; it has 1, 2"),
        ({"space": {"other": {"turns": (5,)}}}, "small: space.other.turns: 5 is not a value of the family"),
        ({"sampler": "best"}, "small: sampler = 'best': expected one of default, random"),
    ],
)
def test_a_study_of_things_that_do_not_exist_is_refused(
    families: Mapping[str, KernelTemplate], changes: Mapping[str, object], words: str
) -> None:
    with pytest.raises(StudyError) as caught:
        check_study(small(**changes), families)
    assert str(caught.value).startswith(words)


def test_a_narrowed_study_keeps_to_its_values(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    device = Device()
    space = {"tiny": {"threads": (128, 32), "order": ("taps",)}}
    (result,) = tune(small(space=space, trials=100), families, device, store)
    assert {source.config.params["threads"] for source in device.ran} == {128, 32}
    assert {source.config.params["order"] for source in device.ran} == {"taps"}
    assert result.evaluated == len(device.ran) == 4 + 5
    assert device.ran[0].config.params == {"threads": 128, "turns": 1, "order": "taps", "fast": False}


def test_a_study_may_be_narrowed_and_widened_between_runs(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    device = Device()
    for study in (
        small(),
        small(templates=("other",)),
        small(space={"tiny": {"order": ("taps",)}}, trials=6),
        small(templates=None, trials=40),
    ):
        tune(study, families, device, store)
    rows = evaluated(store.trials.list("small"))
    assert len({row.trial.number for row in store.trials.list("small")}) == len(store.trials.list("small"))
    assert len({row.trial.config for row in rows}) == len(rows) == len(device.ran) == 40


def test_no_config_by_chance_is_compiled_while_the_first_results_are_awaited(store: Store) -> None:
    device = Slow()
    study = small(trials=100, templates=("direct",))
    direct = load_template(template_files()["direct"])
    tune(study, {"direct": direct}, device, store, stopping=lambda: device.before_the_first_answer is not None)
    assert device.before_the_first_answer == 8  # the config with which a lone family's search begins


def test_two_devices_at_once_run_nothing_twice(tmp_path: Path, families: Mapping[str, KernelTemplate]) -> None:
    with Store(tmp_path / "many.db") as store:
        device = Parallel(FAILING)
        (result,) = tune(small(trials=25), families, device, store)
        assert result.evaluated == 25
        rows = evaluated(store.trials.list("small"))
        assert len(rows) == len({row.trial.source_hash for row in rows}) == 25
        assert len(device.ran) == len({source.hash for source in device.ran})
        assert all(row.trial.outcome != "running" for row in rows)


def test_a_kernel_that_ended_two_runs_is_not_launched_a_third_time(
    store: Store, families: Mapping[str, KernelTemplate]
) -> None:
    device = NotNull(before=plug(2))
    with pytest.raises(PlugPulled):
        tune(small(), families, device, store)
    (suspect,) = [row for row in store.trials.list("small") if row.trial.outcome == "running"]
    with pytest.raises(PlugPulled):
        tune(small(), families, NotNull(before=plug(0)), store)
    last = NotNull()
    tune(small(), families, last, store)
    assert suspect.trial.source_hash not in {source.hash for source in last.ran}
    (row,) = [row for row in store.trials.list("small") if row.trial.number == suspect.trial.number]
    assert (row.trial.outcome, row.trial.reason) == ("runtime", "quarantined")


@pytest.mark.parametrize(("spill_bytes", "runs"), [(1024, True), (1028, False)])
def test_a_kernel_that_spills_by_far_is_not_run(
    store: Store, families: Mapping[str, KernelTemplate], spill_bytes: int, runs: bool
) -> None:
    device = Spilling()
    device.spill_bytes = spill_bytes
    tune(small(trials=3), families, device, store)
    rows = evaluated(store.trials.list())
    assert len(rows) == 3, "it was compiled, so it costs an evaluation"
    assert bool(device.ran) == runs
    if not runs:
        assert {(row.trial.outcome.value, row.trial.reason) for row in rows} == {("invalid_config", "resource_limit")}
        assert (
            rows[0].trial.message
            == "spills more than the 1024 bytes per thread that the study's spill_limit_bytes allows"
        )
        device = Spilling()
        device.spill_bytes = spill_bytes
        tune(small(trials=3, spill_limit_bytes=1028), families, device, store, fresh=True)
        assert device.ran


def test_families_compete_under_one_budget(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    (result,) = tune(small(templates=None, trials=30), families, Device(), store)
    assert result.evaluated == 30
    used = Counter(row.trial.config.template for row in evaluated(store.trials.list("small")))
    assert used.keys() == {"tiny", "other"}


def test_a_family_that_does_not_serve_a_layer_is_left_out(
    tmp_path: Path, store: Store, families: Mapping[str, KernelTemplate]
) -> None:
    nhwc = write_family(tmp_path / "nhwc", ("layout == 'nchw'", "layout == 'nhwc'"), name="nhwc")
    layers = (Layer("one", SMALL), Layer("two", dataclasses.replace(SMALL, layout="nhwc")))
    both = {"tiny": families["tiny"], "nhwc": load_template(nhwc)}
    tune(small(templates=None, layers=layers, trials=5), both, Device(), store)
    used = {(row.name, row.trial.config.template) for row in evaluated(store.trials.list("small"))}
    assert used == {("small.one", "tiny"), ("small.two", "nhwc")}


def test_a_family_is_tried_for_what_it_is_tuned_for_unless_the_study_names_it(
    tmp_path: Path, store: Store, families: Mapping[str, KernelTemplate]
) -> None:
    few = tiny(tmp_path / "few", ("arch     =", 'search_when = "n <= 4"\narch     ='), name="few")
    layers = (Layer("one", SMALL), Layer("many", SMALL.with_runtime(5)))
    both = {"tiny": families["tiny"], "few": few}
    tune(small(templates=None, layers=layers, trials=8), both, Device(), store)
    used = {(row.name, row.trial.config.template) for row in evaluated(store.trials.list("small"))}
    assert used == {("small.one", "tiny"), ("small.one", "few"), ("small.many", "tiny")}
    tune(small(templates=("few",), layers=layers, trials=8), both, Device(), store)
    assert ("small.many", "few") in {(row.name, row.trial.config.template) for row in store.trials.list("small")}


def test_a_family_is_tried_for_what_it_is_not_tuned_for_where_no_other_has_a_config(
    tmp_path: Path, store: Store, families: Mapping[str, KernelTemplate]
) -> None:
    few = tiny(tmp_path / "few", ("arch     =", 'search_when = "device.arch < 50"\narch     ='), name="few")
    none = tiny(tmp_path / "none", ("outputs <= 512", "outputs > 100000"), name="none")
    for others, used in (({}, {"few"}), ({"none": none}, {"few"}), ({"tiny": families["tiny"]}, {"tiny"})):
        name = "-".join(["study", *others])
        tune(small(name=name, templates=None, trials=5), {"few": few, **others}, Device(), store)
        assert {row.trial.config.template for row in evaluated(store.trials.list(name))} == used, others


def test_a_layer_with_no_feasible_config_says_why(tmp_path: Path, store: Store) -> None:
    family = tiny(tmp_path, ("outputs <= 512", "outputs > 100000"))
    with pytest.raises(NoTemplate, match="tiny has no feasible config: a block computes"):
        tune(small(), {"tiny": family}, Device(), store)


def test_the_problem_of_a_layer_may_change_under_its_name(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    (first,) = small().layers
    tune(small(trials=5), families, Device(), store)
    device = Device()
    larger = Conv2dProblem(3, 2, 19, 18, 4, 3, 3)
    edited = small(layers=(Layer("one", larger), dataclasses.replace(first, name="two")), trials=5)
    changed, renamed = tune(edited, families, device, store)
    assert (changed.new, renamed.new, len(device.ran)) == (5, 0, 5)
    assert [row.problem for row in evaluated(store.trials.list("small")) if row.problem == larger] == [larger] * 5
    assert [row.layer.problem for row in store.best.list("small")] == [larger, first.problem]


class Tiring(Device):
    """A null device on which the first kernel of the finals turns out wrong there, twice."""

    def __init__(self) -> None:
        super().__init__("")
        self.left: list[KernelSource] = []

    def finals(self, request: FinalsRequest) -> FinalsTimings:
        """The first kernel is there twice, for the noise floor."""
        if len(self.left) < 2:
            self.left.append(request.kernels[0][0])
            raise Disproved({0: "wrong after it was timed", len(request.kernels) - 1: "wrong after it was timed"})
        return super().finals(request)


def test_kernel_that_went_wrong_in_finals_is_no_winner(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    device = Tiring()
    (result,) = tune(small(), families, device, store)
    wrong = {source.hash for source in device.left}
    assert len(wrong) == 2
    assert result.best is not None
    assert result.best.source_hash not in wrong
    assert result.failures["wrong_result"] == 2
    assert "wrong after it was timed" in result.messages
    (best,) = store.best.list("small")
    assert best.row.trial.source_hash == result.best.source_hash
    assert [retime.label for retime in store.retimes.list("small")] == ["failed", "failed"]


class Noisy(Device):
    """A null device whose finals time the fastest kernel at a tenth of the others, but the second time 3.4 times as
    fast.
    """

    def finals(self, request: FinalsRequest) -> FinalsTimings:
        """The first kernel is there twice, for the noise floor."""
        first, *others = super().finals(request).kernels
        slower = [10.0 * first.median_us] * (len(others) - 1) + [first.median_us / 3.4]
        return FinalsTimings((first, *(summarise((time_us,) * 9, request.cache) for time_us in slower)))


def test_a_kernel_ten_times_as_fast_wins_finals_of_any_noise(
    store: Store, families: Mapping[str, KernelTemplate]
) -> None:
    (result,) = tune(small(), families, Noisy(), store)
    fastest = min(evaluated(store.trials.list("small")), key=lambda row: row.trial.median_us or math.inf)
    assert result.best is not None
    assert result.best.number == fastest.trial.number
    assert result.finals is not None
    assert result.finals.noise == pytest.approx(2.4)
    assert {compared.comparison.verdict for compared in result.finals.compared} == {"win"}

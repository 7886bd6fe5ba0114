"""A network tuned as a whole: its layers concurrently, one budget, one progress bar, one answer."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from autotune.compilation.compile import Binary
from autotune.devices.device import Rate
from autotune.evaluation.null import NullEvaluator
from autotune.family.source import KernelSource
from autotune.family.template import KernelTemplate
from autotune.measurement.traffic import minimal_bytes
from autotune.problem import Layer
from autotune.store import Finals, Store, Verdict
from autotune.study import Study
from autotune.study_reader import load_study
from autotune.trial import Measured
from autotune.tuning.layer_finals import FinalsPlan
from autotune.tuning.schedule import expected_gain_us
from autotune.tuning.trial_log import Progress
from autotune.tuning.tune import tune
from autotune.workers.worker import FinalsRequest, FinalsTimings

from .tiny import SMALL, Command, tiny

FAST, SLOW = Layer("fast", SMALL), Layer("slow", replace(SMALL, n=64, k=64), count=4)
LAYER = """
[[layer]]
name = "{name}"
n = {n}
c = 3
h = 8
w = 8
k = 16
r = 3
s = 3
count = {count}
"""


@pytest.fixture
def families(tmp_path: Path) -> Mapping[str, KernelTemplate]:
    """The tiny family."""
    return {"tiny": tiny(tmp_path)}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty database."""
    with Store(tmp_path / "net.db") as opened:
        yield opened


def network(**changes: object) -> Study:
    """Two layers, one of which takes nearly all of the network's time."""
    study = Study("net", (FAST, SLOW), trials=24, seed=1, templates=("tiny",))
    return replace(study, **changes)  # type: ignore[arg-type]


def told(store: Store) -> dict[str, list[tuple[object, ...]]]:
    """Each layer's trials, which a resumed run must also have."""
    found: dict[str, list[tuple[object, ...]]] = {}
    for row in store.trials.list("net", sort="number"):
        trial = row.trial
        found.setdefault(row.name, []).append((trial.number, trial.config, trial.outcome, trial.timing))
    return found


class Compiling(NullEvaluator):
    """A null device with compilers that note the problem of each kernel."""

    def __init__(self) -> None:
        super().__init__("compilers=30,compile_ms=1")
        self.events: list[object] = []

    def compile(self, source: KernelSource) -> Future[Binary]:
        """Note the problem."""
        self.events.append(source.problem)
        return super().compile(source)

    def observe(self, progress: Progress) -> None:
        """Note the start of a layer, by its name."""
        if progress.phase == "start":
            self.events.append(progress.layer)


class Watched(NullEvaluator):
    """A null device that notes the layers of its kernels, and compilations during finals."""

    def __init__(self, options: str = "") -> None:
        super().__init__(options)
        self.ran: list[KernelSource] = []
        self.beside_finals = threading.Event()
        """set if something is compiled during finals"""
        self.finals_s: list[float] = []
        self._held = threading.Event()

    def compile(self, source: KernelSource) -> Future[Binary]:
        """Note compilations during finals."""
        if self._held.is_set():
            self.beside_finals.set()
        return super().compile(source)

    def evaluate(self, source: KernelSource, binary: Binary, *, cache: str, best_us: float | None) -> Measured:
        """Note the kernel."""
        self.ran.append(source)
        return super().evaluate(source, binary, cache=cache, best_us=best_us)

    def finals(self, request: FinalsRequest) -> FinalsTimings:
        """Note the finals and their time limit; with compilers, wait for those."""
        self.finals_s.append(request.budget_s)
        self._held.set()
        if self.ahead > 1 and len(self.finals_s) == 1:
            self.beside_finals.wait(10.0)
        try:
            return super().finals(request)
        finally:
            self._held.clear()


def reached(device: Watched, count: int) -> bool:
    """Whether a device has run this many kernels."""
    return len(device.ran) >= count


class Clock:
    """A clock that a device advances by a second per kernel."""

    def __init__(self, device: Watched) -> None:
        self.device = device

    def __call__(self) -> float:
        return float(len(self.device.ran))


def test_common_budget_goes_where_the_time_is(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    device = Watched()
    results = tune(network(trials_total=30, trials=40), families, device, store)
    spent = Counter(source.problem for source in device.ran)
    assert spent.total() == sum(result.new for result in results) == 30
    assert spent[SLOW.problem] > 2 * spent[FAST.problem] > 0
    assert {result.stopped for result in results} == {"budget in total"}
    assert all(result.finals for result in results)


def test_common_budget_resumed_is_as_uninterrupted(tmp_path: Path, families: Mapping[str, KernelTemplate]) -> None:
    study = network(trials_total=24)
    with Store(tmp_path / "whole.db") as store:
        tune(study, families, Watched("wrong=0.2"), store)
        expected = told(store)
    with Store(tmp_path / "parts.db") as store:
        device = Watched("wrong=0.2")
        for stop in (1, 7, 13, 100):
            tune(study, families, device, store, stopping=partial(reached, device, stop))
        assert told(store) == expected
    assert len(device.ran) == len({source.hash for source in device.ran}) == 24


def test_common_time_leaves_a_fifth_for_finals(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    device = Watched()
    results = tune(network(time_budget_total_s=20.0), families, device, store, clock=Clock(device))
    assert len(device.ran) == 16
    assert {result.stopped for result in results} == {"time in total"}
    assert device.finals_s == [2.0, 2.0]


@pytest.mark.parametrize(("listing_s", "kernels"), [(3.0, 13), (60.0, 6)])
def test_listing_takes_of_the_common_time_but_half_at_most(
    listing_s: float, kernels: int, store: Store, families: Mapping[str, KernelTemplate]
) -> None:
    device = Watched()
    clock, listed = Clock(device), []

    def observe(progress: Progress) -> None:
        listed.extend([progress.layer] if progress.phase == "listing" else [])

    tune(
        network(time_budget_total_s=20.0),
        families,
        device,
        store,
        observe=observe,
        clock=lambda: clock() + listing_s / 2 * len(listed),
    )
    assert len(listed) == 2
    assert len(device.ran) == kernels, "of 16 that 20 s without listing leave room for"


@pytest.mark.parametrize("layers", [7, 14])
def test_every_layer_has_a_kernel_where_time_is_short(
    layers: int, store: Store, families: Mapping[str, KernelTemplate]
) -> None:
    alike = [Layer(f"conv{n}", replace(SMALL, n=n)) for n in range(1, layers + 1)]
    device = Watched()
    results = tune(network(layers=alike, time_budget_total_s=20.0), families, device, store, clock=Clock(device))
    assert len(device.ran) == 16
    assert all(result.best for result in results), [result.new for result in results]
    assert len(results) == len(alike)


@pytest.mark.parametrize("total", [7, 9, 16])
def test_every_layer_has_a_kernel_where_evaluations_are_few(
    total: int, store: Store, families: Mapping[str, KernelTemplate]
) -> None:
    alike = [Layer(f"conv{n}", replace(SMALL, n=n)) for n in range(1, 8)]
    results = tune(network(layers=alike, trials_total=total), families, Watched(), store)
    assert sum(result.new for result in results) == total
    assert [result.layer.name for result in results if result.best] == [layer.name for layer in alike]


def test_finals_of_many_layers_share_their_time() -> None:
    assert FinalsPlan().each_s(2, None) == 4.0
    assert FinalsPlan().each_s(60, None) == 0.5
    assert FinalsPlan(budget_s=3.0, together_s=None).each_s(60, 10.0) == 3.0


def test_layer_at_its_roofline_leaves_the_budget_to_others(
    store: Store, families: Mapping[str, KernelTemplate]
) -> None:
    device = Watched()
    (alone,) = tune(network(layers=(FAST,), name="before"), families, device, store)
    assert alone.best is not None
    assert alone.best.median_us is not None
    rate = minimal_bytes(FAST.problem) / (alone.best.median_us / 1.01 * 1e-6)
    store.rates.add(device.info, device.environment, [Rate("copy", "", rate)])
    device.ran.clear()
    fast, slow = tune(network(trials_total=60), families, device, store)
    assert (fast.stopped, fast.new) == ("at its roofline", 0)
    assert slow.new > 0


def test_layers_fill_what_others_leave_free(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    device, third = Watched("compile_ms=50,delay_ms=10,compilers=4"), Layer("third", SMALL.with_runtime(30))
    results = tune(network(layers=(FAST, SLOW, third), trials=20, sampler="random"), families, device, store)
    device.close()
    assert [result.evaluated for result in results] == [20, 20, 20]
    assert all(result.finals for result in results)
    assert len({source.hash for source in device.ran}) == len(device.ran), "nothing runs twice"
    assert SLOW.problem in [source.problem for source in device.ran[:15]], "the second begins before the first ends"
    assert device.beside_finals.is_set(), "compilers work while finals of others are held"


def test_without_compilers_layers_come_one_after_another(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    device = Watched()
    tune(network(sampler="random"), families, device, store)
    assert [source.problem for source in device.ran] == [FAST.problem] * 24 + [SLOW.problem] * 24


def test_shape_of_two_layers_is_tuned_once(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    device, again = Watched(), Layer("again", SMALL, count=2)
    first, second, _ = tune(network(layers=(FAST, again, SLOW), sampler="random"), families, device, store)
    assert len(device.ran) == 48
    assert (first.new, second.new, second.evaluated) == (24, 0, 24)
    assert first.best == second.best
    assert (second.name, second.layer) == ("net.again", again)


def test_progress_is_the_networks(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    seen: list[Progress] = []
    results = tune(network(), families, Watched(), store, observe=seen.append)
    networks = [progress.network for progress in seen if progress.network]
    assert len(networks) == len(seen)
    assert (networks[0].timed, networks[-1].timed, networks[-1].done, networks[-1].budget) == (0, 2, 48, 48)
    assert [one.ended for one in networks] == [False] * (len(networks) - 1) + [True]
    best = sum(result.layer.count * min(t.median_us or 0.0 for t in [result.best] if t) for result in results)
    assert networks[-1].now_us == pytest.approx(best)
    assert networks[-1].start_us > networks[-1].now_us
    assert networks[-1].floor_us is None


def test_gain_is_largest_where_much_time_is_and_little_was_tried() -> None:
    def gain(count: int = 1, evaluated: int = 10, best_us: float = 100.0, floor_us: float | None = None) -> float:
        return expected_gain_us(count=count, evaluated=evaluated, best_us=best_us, floor_us=floor_us)

    assert gain(count=2) == 2 * gain()
    assert gain(best_us=200.0) > gain() > gain(evaluated=11) > 0
    assert gain(floor_us=90.0) == pytest.approx(0.1 * gain())
    assert gain(floor_us=150.0) == gain(), "a floor that is beaten is wrong"


# On the command line.


@pytest.fixture
def net(folder: Path, autotune: Command) -> Path:
    """A database of a network on the null device; one of its layers loses to a library."""
    layers = "".join(
        LAYER.format(name=name, n=n, count=c) for name, n, c in (("stem", 2, 1), ("layer4-downsample", 7, 3))
    )
    (folder / "net.toml").write_text(f'name = "net"\ntemplates = ["tiny"]\ntrials = 12\n{layers}')
    done = autotune("tune", "net.toml", "--family-dir", "families", "--device", "null", "--trials-total", "20")
    assert done.code == 0
    assert "net: 20/20 in " in done.err
    assert " us, was " in done.err
    database = folder / "autotune.db"
    study = load_study(folder / "net.toml")
    with Store(database) as store:
        key = store.studies.begin(study)
        for row, factor in zip(store.best.list("net"), (2.0, 0.5), strict=True):
            scope = store.scopes.open(key, row.layer, row.row.device, row.row.environment, row.row.measurement_mode, ())
            words = "win" if factor > 1 else "loss"
            verdict = Verdict("cudnn NHWC", words, row.median_us, factor * row.median_us, None, "fp32")
            store.finals.add(scope, Finals(row.row.trial.number, ((row.row.trial.number, row.timing),), (verdict,)))
    return database


def test_best_of_a_network_fits_and_shows_losses(net: Path, autotune: Command) -> None:
    lines = autotune("best", "net").out.splitlines()
    assert lines[0] == "net on null"
    assert lines[1].split() == ["layer", "count", "time_us", "share", "rival_us", "rival", "verdict"]
    assert [line.split()[0] for line in lines[2:]] == ["stem", "layer4-downsample", "sum"]
    assert "WIN 2.00x" in lines[2]
    assert "LOSS 0.50x" in lines[3]
    assert "LOSS" in lines[4]
    assert max(map(len, lines)) <= 80


def test_best_sums_up_the_forward_layers_and_each_gradient(folder: Path, autotune: Command) -> None:
    sizes = 'n = 2\nc = 8\nh = 6\nw = 6\nk = 8\nr = 3\ns = 3\nlayout = "nhwc"\ndtype = "f16"\ncount = 2\n'
    layers = (
        f'[[layer]]\nname = "{name}"\nop = "{op}"\n{sizes}'
        for name, op in (
            ("stem", "conv2d"),
            ("next", "conv2d"),
            ("next-data", "conv_transpose"),
            ("next-filter", "conv_filter_gradient"),
        )
    )
    (folder / "step.toml").write_text('name = "step"\n' + "".join(layers))
    assert autotune("tune", "step.toml", "--device", "null", "--trials-total", "8").code == 0
    rows = [line.split() for line in autotune("best", "step").out.splitlines()[2:]]
    times = {" ".join(row[:-3]): float(row[-2]) for row in rows}
    assert list(times)[4:] == ["conv2d: sum", "conv_transpose: sum", "conv_filter_gradient: sum", "sum"]
    assert times["conv_filter_gradient: sum"] == pytest.approx(2 * times["next-filter"], rel=0.01)
    assert times["sum"] == pytest.approx(sum(list(times.values())[4:7]), rel=0.01)


def test_best_of_a_network_says_the_same_in_json(net: Path, autotune: Command) -> None:
    stem, last = json.loads(autotune("best", "net", "--json").out)
    assert (stem["count"], last["count"], stem["verdict"], last["verdict"]) == (1, 3, "win", "loss")
    assert stem["network_us"] == last["network_us"] == pytest.approx(stem["median_us"] + 3 * last["median_us"])
    assert stem["share"] + last["share"] == pytest.approx(1.0)
    assert last["share"] == pytest.approx(3 * last["median_us"] / last["network_us"])
    assert last["network_rival_us"] == pytest.approx(2 * stem["median_us"] + 1.5 * last["median_us"])
    assert last["rival"] == "cudnn NHWC"
    assert stem["network_floor_us"] is None


def test_budget_in_total_must_be_one(folder: Path, autotune: Command) -> None:
    for words in (("--time-budget-total", "0"), ("--trials-total", "0")):
        assert autotune("tune", "small.toml", *words).code == 2
    study = folder / "small.toml"
    study.write_text("trials_total = 0\n" + study.read_text())
    assert "trials_total: 0 is too small" in autotune("tune", "small.toml", "--device", "null").complaint


def test_a_layer_compiles_before_the_next_one_begins(store: Store, families: Mapping[str, KernelTemplate]) -> None:
    layers = {f"net.l{n}": Layer(f"l{n}", SMALL.with_runtime(n)) for n in range(8, 14)}
    device = Compiling()
    tune(network(layers=tuple(layers.values()), trials_total=40), families, device, store, observe=device.observe)
    begun = [at for at, event in enumerate(device.events) if event in layers]
    assert len(begun) == len(layers)
    for at, following in pairwise(begun):  # a layer that began earlier may also compile during them
        assert layers[str(device.events[at])].problem in device.events[at + 1 : following]

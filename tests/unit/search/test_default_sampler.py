"""Properties of the project's own sampler beyond the contract: it learns failures, finds optima, shares a budget."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from autotune.search.gaussian_process import fit, posterior
from autotune.search.one_hot import Features
from autotune.search.search import Search, family_of
from autotune.search.state import Neighbourhood
from autotune.trial import Config, Outcome, Value
from tests.benchmarks.replay import replay_once
from tests.long_run import every, long_run
from tests.recorded_spaces import read_recording

from .spaces import ListedSpace, finished, run
from .synthetic import synthetic

RECORDED = Path(__file__).parents[2] / "data" / "recorded-spaces"


def feasible(values: Mapping[str, Value]) -> bool:
    return 32 <= int(values["bx"]) * int(values["by"]) <= 512 and int(values["depth"]) % int(values["unroll"]) == 0


def tiles(template: str = "tiles") -> ListedSpace:
    """About 9,000 configs of eight parameters."""
    params: dict[str, list[Value]] = {
        "bx": [8, 16, 32, 64, 128],
        "by": [1, 2, 4, 8, 16],
        "tx": [1, 2, 3, 4],
        "ty": [1, 2, 3, 4],
        "depth": [1, 2, 4, 6],
        "unroll": [1, 2, 3],
        "memory": ["global", "constant"],
        "vector": [1, 2, 4],
    }
    return ListedSpace(template, params, feasible)


def smooth(config: Config) -> float:
    values = config.params
    threads = int(values["bx"]) * int(values["by"])
    work = int(values["tx"]) * int(values["ty"])
    cost = (
        100.0
        * (1 + abs(np.log2(threads / 128)) / 4)
        * (1 + abs(work - 6) / 10)
        * (1 + 0.3 / int(values["unroll"]))
        * (1.2 if values["memory"] == "global" else 1.0)
        * (1 + 0.05 * abs(int(values["vector"]) - 2))
    )
    return float(cost)


def test_the_search_is_blind_between_its_first_configs_and_their_results() -> None:
    params: dict[str, list[Value]] = {name: [1, 2, 3, 4] for name in ("bx", "by", "tx", "ty")}
    spaces = [ListedSpace(name, params) for name in ("one", "other")]
    search = Search(spaces, sampler="default", seed=0, budget=200, history=())
    asked: list[Config] = []
    while not search.is_random:
        config = search.ask(len(asked))
        assert config is not None
        asked.append(config)
    assert len(asked) == 6  # three of each family
    for told in ("one", "other"):
        assert search.is_random
        for number, config in enumerate([config for config in asked if config.template == told][:3]):
            search.tell(finished(number, config, 10.0 + number))
    assert not search.is_random


@pytest.mark.parametrize("seed", every(2, range(2)))
@pytest.mark.parametrize(("name", "value"), [("memory", "constant"), ("bx", (8, 16, 32))])
def test_failures_are_learned(seed: int, name: str, value: Value | tuple[int, ...]) -> None:
    """One value, or three of five, that always fail cover half of the space; the search soon avoids them."""
    space = tiles()
    failing = value if isinstance(value, tuple) else (value,)

    def cost(config: Config) -> float:
        return float("inf") if config.params[name] in failing else smooth(config)

    share = np.mean([space.config(row).params[name] in failing for row in range(len(space.rows))])
    assert 0.35 < share < 0.65
    trials = run([space], cost, sampler="default", budget=100, seed=seed)
    late = [trial for trial in trials[30:] if trial.config.params[name] in failing]
    assert len(late) <= 5, [str(trial.config) for trial in late]


def test_a_failing_value_is_learned_among_other_failures() -> None:
    """23 % of this recording fail; here all configs with one of the two values of a parameter also fail."""
    recording = read_recording(RECORDED / "convolution-RTX_3090.json.gz")
    column = [param.name for param in recording.params].index("read_only")
    fails = recording.rows[:, column] == 0
    failures = [(Outcome.RUNTIME, "launch") if f else was for f, was in zip(fails, recording.failures, strict=True)]
    times_us = np.where(fails, np.inf, recording.times_us)
    failing = dataclasses.replace(recording, times_us=times_us, failures=tuple(failures))
    for seed in (1, 2):
        late = replay_once(failing, sampler="default", seed=seed, evaluations=100).configs[30:]
        assert sum(config.params["read_only"] == 0 for config in late) <= 5, seed


@pytest.mark.parametrize("seed", every(3, range(3)))
def test_the_optimum_of_a_smooth_space_is_found(seed: int) -> None:
    space = tiles()
    optimum = min(smooth(space.config(row)) for row in range(len(space.rows)))
    trials = run([space], smooth, sampler="default", budget=80, seed=seed)
    assert min(smooth(trial.config) for trial in trials) == pytest.approx(optimum)


@pytest.mark.parametrize(("kernel", "within"), [("dedispersion", 1.05), *long_run(("transpose", 1.10))])
def test_synthetic_kernels_come_close_within_60_evaluations(kernel: str, within: float) -> None:
    recording = synthetic(kernel, "small")
    found = [replay_once(recording, sampler="default", seed=seed, evaluations=60).after(60) for seed in range(3)]
    assert sorted(found)[1] <= within, found


def test_a_resumed_search_of_many_configs_goes_on_as_before() -> None:
    """Resumed at any point between two refits of the model, on times with a long tail."""
    recording = synthetic("transpose", "large")
    whole = replay_once(recording, sampler="default", seed=1, evaluations=48).configs
    history = [recording.trial(number, config) for number, config in enumerate(whole)]
    for stop in (16, 22, 30, 37, 44):
        search = Search([recording], sampler="default", seed=1, budget=48, history=history[:stop])
        for number in range(stop, 48):
            assert search.ask(number) == whole[number], (stop, number)
            search.tell(history[number])


def test_every_family_gets_a_fair_look_and_the_better_one_the_budget() -> None:
    trials = run(
        [tiles("bad"), tiles("good")],
        lambda config: smooth(config) * (3.0 if config.template == "bad" else 1.0),
        sampler="default",
        budget=60,
    )
    spent = {name: sum(trial.config.template == name for trial in trials) for name in ("good", "bad")}
    assert spent["bad"] >= 6
    assert spent["good"] >= 40


def far_behind(config: Config) -> float:
    return smooth(config) * {"fast": 1.0, "near": 1.6, "slow": 20.0}[config.template]


@pytest.mark.parametrize("seed", every(2, range(2)))
def test_few_evaluations_are_not_spent_on_a_family_whose_default_is_slow(seed: int) -> None:
    trials = run([tiles("slow"), tiles("near"), tiles("fast")], far_behind, sampler="default", budget=72, seed=seed)
    of = [trial.config.template for trial in trials]
    assert of[:12].count("slow") == 1, "its default"
    assert of[:24].count("near") >= 3, "which may win"
    assert 2 <= of.count("slow") <= 4, "a default says little: it has its turn once there are evaluations to spare"


def test_a_family_is_not_far_behind_before_it_has_a_time() -> None:
    """Failed, or still running."""

    def cost(config: Config) -> float:
        default = config.template == "slow" and config == tiles("slow").default
        return float("inf") if default else far_behind(config)

    trials = run([tiles("slow"), tiles("fast")], cost, sampler="default", budget=8)
    assert [trial.config.template for trial in trials].count("slow") >= 2


def test_of_many_families_the_better_one_gets_the_budget_before_all_had_their_fair_look() -> None:
    params: dict[str, list[Value]] = {name: [1, 2, 3, 4] for name in ("bx", "by", "tx", "ty")}
    families = [ListedSpace(name, params) for name in ("one", "good", "two", "three", "four", "five")]

    def cost(config: Config) -> float:
        return sum(int(value) for value in config.params.values()) * (1.0 if config.template == "good" else 1.8)

    trials = run(families, cost, sampler="default", budget=34)
    spent = [sum(trial.config.template == space.template for trial in trials) for space in families]
    assert spent.pop(1) >= 12
    assert min(spent) >= 3
    assert sum(spent) - 5 * 3 >= 4  # every fourth proposal looks again at one of the others


def test_a_family_whose_default_is_bad_still_wins_with_its_best_config() -> None:
    slow_start, plain = tiles("slow_start"), tiles("plain")

    def cost(config: Config) -> float:
        return smooth(config) * 0.6 if config.template == "slow_start" else 180.0 + smooth(config) / 100

    assert cost(slow_start.config(0)) > cost(plain.config(0))
    trials = run([plain, slow_start], cost, sampler="default", budget=60)
    assert min(trials, key=lambda trial: cost(trial.config)).config.template == "slow_start"


def test_sixteen_in_flight_do_not_crowd_together() -> None:
    """A config in flight counts as evaluated; otherwise all sixteen would be neighbours of the same promising one."""
    apart = []
    for seed in range(3):
        search = Search([tiles()], sampler="default", seed=seed, budget=200, history=())
        for number in range(30):
            config = search.ask(number)
            assert config is not None
            search.tell(finished(number, config, smooth(config)))
        batch = [config.params for number in range(30, 46) if (config := search.ask(number)) is not None]
        assert len(batch) == 16
        apart += [sum(a[name] != b[name] for name in a) for a in batch for b in batch if a is not b]
    assert np.mean(apart) >= 3.4  # 2.9 when configs in flight are not taken into account, 4.0 when they are


def test_a_proposal_at_a_thousand_trials_takes_less_than_20_ms() -> None:
    """Processor time, which hardly depends on the load; the first proposal also looks at all trials."""
    recording = synthetic("stencil", "small")
    history = [recording.trial(n, recording.config(37 * n)) for n in range(1000)]
    search = Search([recording], sampler="default", seed=0, budget=2000, history=history)
    search.ask(1000)
    seconds = []
    for number in range(1001, 1010):
        started = time.process_time()
        search.ask(number)
        seconds.append(time.process_time() - started)
    assert median(seconds) < 0.02


def test_neighbours_are_the_rows_that_differ_in_one_or_two_values() -> None:
    space = tiles()
    near = Neighbourhood(family_of(space))
    for position in (0, 17, 1234, len(space.rows) - 1):
        apart = np.count_nonzero(space.rows != space.rows[position], axis=1)
        assert sorted(near.within_one(position)) == list(np.flatnonzero(apart == 1))
        assert sorted(near.within_two(position)) == list(np.flatnonzero(apart == 2))


def waves(values: Mapping[str, Value]) -> int:
    """The outputs of full waves of 132 tiles, of 64 x 49 x 512 outputs: no single parameter determines them."""
    tile_m, tile_n = int(values["tile_m"]), int(values["tile_n"])
    tiles = -(-512 // tile_m) * -(-64 * 49 // tile_n)
    return -(-tiles // 132) * 132 * tile_m * tile_n


def waving(*, told: bool) -> ListedSpace:
    """480 tiles, with or without their padded outputs."""
    params: dict[str, list[Value]] = {
        "tile_m": [128, 64, 192, 256],
        "tile_n": list(range(16, 256, 8)),
        "schedule": ["pingpong", "cooperative"],
        "subtiles": [1, 2],
    }
    return ListedSpace("waving", params, padded_work=waves if told else None)


def in_waves(config: Config) -> float:
    values = config.params
    slower = 1.03 if values["schedule"] == "pingpong" else 1.0
    return waves(values) * (1 + 16 / int(values["tile_n"]) + 16 / int(values["tile_m"])) * slower / 1e5


def test_the_first_configs_leave_little_of_the_device_idle_and_lie_apart() -> None:
    space = waving(told=True)
    trials = run([space], in_waves, sampler="default", budget=8)
    assert space.padded_work is not None
    bound = np.quantile(space.padded_work, 0.31)
    first = [trial.config.params for trial in trials[1:]]
    assert all(waves(values) <= bound for values in first)
    assert {values["tile_m"] for values in first} == {64, 128, 192, 256}
    assert {16, 240} <= {values["tile_n"] for values in first}


def test_what_idles_is_learned_across_tile_sizes() -> None:
    """The predictions for the other configs, from 16 random ones."""

    def agreement(*, told: bool, seed: int) -> float:
        space = waving(told=told)
        features = Features(family_of(space))
        log_times = np.log([in_waves(space.config(row)) for row in range(len(space.rows))])
        known = np.random.default_rng(seed).permutation(len(space.rows))[:16]
        codes = features.codes(np.arange(len(space.rows)))
        weights = fit(features.metric, codes[known], log_times[known])
        mean, _ = posterior(features.metric, codes[known], log_times[known], weights).predict(codes)
        return float(np.corrcoef(mean, log_times)[0, 1])

    assert median(agreement(told=True, seed=seed) for seed in range(9)) > 0.85
    assert median(agreement(told=False, seed=seed) for seed in range(9)) < 0.8


def test_a_kernel_near_the_optimum_is_found_sooner_where_it_is_known_what_idles() -> None:
    best = min(in_waves(waving(told=True).config(row)) for row in range(480))

    def found(*, told: bool) -> float:
        runs = [run([waving(told=told)], in_waves, sampler="default", budget=10, seed=seed) for seed in range(9)]
        return median(min(trial.median_us or np.inf for trial in trials) / best for trials in runs)

    assert found(told=True) < 1.15 < 1.2 < found(told=False)

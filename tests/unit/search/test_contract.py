"""Rules for every sampler: feasible configs, never twice, defaults first, resumable, small spaces enumerated."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from autotune.errors import StudyError
from autotune.search.search import Search
from autotune.study import SAMPLERS
from autotune.trial import Config, Value

from .spaces import ListedSpace, finished, run


def divides(values: Mapping[str, Value]) -> bool:
    return int(values["block_x"]) * int(values["block_y"]) <= 128 and int(values["tile"]) % int(values["unroll"]) == 0


def direct() -> ListedSpace:
    return ListedSpace(
        "direct",
        {
            "block_x": [4, 8, 16, 32, 64],
            "block_y": [1, 2, 4, 8, 16],
            "tile": [1, 2, 4, 6, 8],
            "unroll": [1, 2, 3, 4],
            "filters": ["global", "constant"],
            "vector": [4],
        },
        divides,
    )


def gemm() -> ListedSpace:
    return ListedSpace("gemm", {"bm": [16, 32, 64], "bn": [16, 32, 64], "stages": [1, 2], "padded": [False, True]})


def cost(config: Config) -> float:
    """Microseconds: fails if the tile is 6, otherwise a product of interacting terms."""
    values = config.params
    if config.template == "gemm":
        return 300.0 - int(values["bm"]) - int(values["stages"]) * int(values["bn"])
    if values["tile"] == 6:
        return float("inf")
    threads = int(values["block_x"]) * int(values["block_y"])
    return (
        100.0
        + abs(threads - 64)
        + 20 * abs(int(values["tile"]) - 2 * int(values["unroll"]))
        + 40 * (values["filters"] == "global")
    )


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_configs_are_feasible_distinct_and_start_with_the_defaults(sampler: str) -> None:
    spaces = [direct(), gemm()]
    budget = 40
    trials = run(spaces, cost, sampler=sampler, budget=budget)
    configs = [trial.config for trial in trials]
    assert len(set(configs)) == budget
    assert configs[:2] == [space.default for space in spaces]
    for config in configs:
        assert any(space.row_of(config) is not None for space in spaces), config


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_resumed_search_proposes_what_an_uninterrupted_one_does(sampler: str) -> None:
    spaces = [direct(), gemm()]
    whole = run(spaces, cost, sampler=sampler, budget=40, seed=3)
    for stop in (1, 17, 38) if sampler == "default" else (17,):
        resumed = run(spaces, cost, sampler=sampler, budget=40, seed=3, history=whole[:stop])
        assert [str(trial.config) for trial in resumed] == [str(trial.config) for trial in whole], stop


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_seeds_differ(sampler: str) -> None:
    first, second = (run([direct()], cost, sampler=sampler, budget=20, seed=seed) for seed in (0, 1))
    assert [trial.config for trial in first] != [trial.config for trial in second]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_space_within_the_budget_is_walked_in_order(sampler: str) -> None:
    space = gemm()
    trials = run([space], cost, sampler=sampler, budget=36)
    assert [trial.config for trial in trials] == [space.config(row) for row in range(36)]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_sampled_space_is_not_walked_but_searched_until_nothing_is_left(sampler: str) -> None:
    space = ListedSpace("gemm", {"bm": [16, 32, 64], "stages": [1, 2, 3]}, complete=False)
    trials = run([space], lambda config: float(str(config.params["bm"])), sampler=sampler, budget=50)
    assert sorted(str(trial.config) for trial in trials) == sorted(str(space.config(row)) for row in range(9))
    assert [trial.config for trial in trials] != [space.config(row) for row in range(9)]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_configs_in_flight_are_not_asked_for_again(sampler: str) -> None:
    search = Search([direct(), gemm()], sampler=sampler, seed=0, budget=100, history=())
    in_flight: list[tuple[int, Config]] = []
    seen: set[Config] = set()
    for number in range(64):
        config = search.ask(number)
        assert config is not None
        assert config not in seen, config
        seen.add(config)
        in_flight.append((number, config))
        if len(in_flight) == 16:
            done_number, done = in_flight.pop(number % 5)
            search.tell(finished(done_number, done, cost(done)))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_only_failures_do_not_stop_the_search(sampler: str) -> None:
    trials = run([direct()], lambda config: float("inf"), sampler=sampler, budget=30)
    assert len({trial.config for trial in trials}) == 30


def test_trials_of_configs_outside_the_spaces_change_nothing() -> None:
    space = direct()
    plain = run([space], cost, sampler="default", budget=15)
    stranger = finished(0, Config("winograd", (("tile", 2),)), 1.0)
    search = Search([space], sampler="default", seed=0, budget=15, history=[stranger])
    assert search.ask(0) == plain[0].config


def test_no_feasible_config_means_nothing_to_ask() -> None:
    space = ListedSpace("direct", {"block": [1, 2]}, lambda values: False)
    assert Search([space], sampler="default", seed=0, budget=10, history=()).ask(0) is None
    assert Search([], sampler="default", seed=0, budget=10, history=()).ask(0) is None


def test_an_unknown_sampler_is_named_with_the_known_ones() -> None:
    with pytest.raises(StudyError, match=f"sampler = 'anneal': expected one of {', '.join(SAMPLERS)}"):
        Search([direct()], sampler="anneal", seed=0, budget=10, history=())

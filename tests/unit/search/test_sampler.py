"""The project's sampler in any Optuna study: Optuna's own tests for samplers, and the properties beyond them."""

from __future__ import annotations

import math
import pickle
import re
import statistics
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalChoiceType
from optuna.samplers import BaseSampler, RandomSampler
from optuna.testing.pytest_samplers import BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase
from optuna.trial import Trial, TrialState

from autotune.search import AutotuneSampler
from tests.benchmarks.any_objective import branin, conditional, counted, integers, mixed

SPACE = [{"x": x, "y": y} for x in range(8) for y in range(8) if (x + y) % 3]
"""43 feasible configs."""


@pytest.fixture(autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


class TestOptunasCases(BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase):
    """Optuna's own tests of a sampler."""

    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return lambda: AutotuneSampler(seed=0)


def bowl(trial: Trial) -> float:
    x, y = trial.suggest_float("x", -5, 10), trial.suggest_float("y", 0, 15)
    return (x - 2) ** 2 + (y - 3) ** 2


def studied(sampler: BaseSampler, objective: Callable[[Trial], float], trials: int, **options: str) -> optuna.Study:
    study = optuna.create_study(sampler=sampler, **options)  # type: ignore[arg-type]
    study.optimize(objective, n_trials=trials, catch=(ArithmeticError,))
    return study


def test_a_smooth_minimum_is_found() -> None:
    assert studied(AutotuneSampler(seed=0), bowl, 40).best_value < 0.01


def test_a_maximum_is_found_as_the_minimum_of_the_negative() -> None:
    most = studied(AutotuneSampler(seed=0), lambda trial: -bowl(trial), 25, direction="maximize")
    least = studied(AutotuneSampler(seed=0), bowl, 25)
    assert [trial.params for trial in most.trials] == [trial.params for trial in least.trials]


def test_the_scale_of_the_values_does_not_matter() -> None:
    tiny = studied(AutotuneSampler(seed=0), lambda trial: 1e-9 * bowl(trial), 40)
    assert tiny.best_value < 1e-11


def test_mixed_spaces_are_searched_better_than_by_chance() -> None:
    own = sorted(studied(AutotuneSampler(seed=seed), mixed, 50).best_value for seed in range(3))
    chance = sorted(studied(RandomSampler(seed=seed), mixed, 50).best_value for seed in range(3))
    assert own[1] < 0.5 * chance[1], (own, chance)


@pytest.mark.parametrize("seed", range(3))
def test_the_better_family_of_a_conditional_space_gets_the_trials(seed: int) -> None:
    study = studied(AutotuneSampler(seed=seed), conditional, 45)
    families = [trial.params["family"] for trial in study.trials]
    assert all(families.count(family) >= 2 for family in ("tree", "linear", "net")), families
    assert families[-20:].count("net") >= 12, families
    assert study.best_value < 0.35


def test_a_count_of_parameters_is_found_in_few_trials() -> None:
    best = sorted(studied(AutotuneSampler(seed=seed), counted, 15).best_value for seed in range(5))
    assert best[2] < 1.5, best


def test_a_smooth_function_is_found_in_few_trials() -> None:
    best = sorted(studied(AutotuneSampler(seed=seed), branin, 15).best_value for seed in range(5))
    assert best[2] < 1.5, best


def test_the_same_seed_gives_the_same_trials_and_another_gives_others() -> None:
    first, second, other = (studied(AutotuneSampler(seed=seed), mixed, 20) for seed in (1, 1, 2))
    assert [trial.params for trial in first.trials] == [trial.params for trial in second.trials]
    assert [trial.params for trial in first.trials] != [trial.params for trial in other.trials]


def test_a_study_that_is_loaded_again_goes_on_as_if_it_had_not_ended() -> None:
    whole = studied(AutotuneSampler(seed=1), conditional, 30)
    resumed = optuna.create_study(sampler=AutotuneSampler(seed=1))
    resumed.add_trials(whole.trials[:17])
    resumed.optimize(conditional, n_trials=13)
    assert [trial.params for trial in resumed.trials] == [trial.params for trial in whole.trials]


def test_a_sampler_that_is_pickled_goes_on_as_before() -> None:
    for space in (None, SPACE):
        study = optuna.create_study(sampler=AutotuneSampler(seed=1, space=space))
        objective = bowl if space is None else listed
        study.optimize(objective, n_trials=12)
        copy = optuna.create_study(sampler=pickle.loads(pickle.dumps(study.sampler)))
        copy.add_trials(study.trials)
        for each in (study, copy):
            each.optimize(objective, n_trials=5)
        assert [trial.params for trial in copy.trials] == [trial.params for trial in study.trials]


def failing(trial: Trial) -> float:
    """Half of the space fails, in each way that a trial may fail; the unconstrained minimum lies there."""
    x, y = trial.suggest_float("x", -1, 1), trial.suggest_float("y", -1, 1)
    if x > 0:
        way = trial.number % 4
        if way == 0:
            raise ZeroDivisionError
        if way == 1:
            raise optuna.TrialPruned
        return math.nan if way == 2 else math.inf
    return (x - 0.5) ** 2 + y**2


def test_failures_are_learned() -> None:
    study = studied(AutotuneSampler(seed=0), failing, 60)
    late = [trial for trial in study.trials[20:] if trial.params["x"] > 0.1]  # the best one that does not fail is at 0
    assert len(late) <= 3, [trial.params for trial in late]
    assert study.best_value < 0.252


def constrained(trial: Trial) -> float:
    x, y = trial.suggest_float("x", 0, 1), trial.suggest_float("y", 0, 1)
    trial.set_user_attr("over", x + y - 1)
    return -x * y


def test_constraints_are_kept() -> None:
    found: list[float] = []
    for seed in range(5):  # one seed's path depends on the processor's rounding
        sampler = AutotuneSampler(seed=seed, constraints_func=lambda trial: (trial.user_attrs["over"],))
        study = studied(sampler, constrained, 60)
        assert sum(trial.user_attrs["over"] <= 0.1 for trial in study.trials[20:]) >= 25  # the best one is at 0
        kept = (trial.value for trial in study.trials if trial.value is not None and trial.user_attrs["over"] <= 0)
        found.append(min(kept))
    assert statistics.median(found) < -0.245, found
    assert study.trials[-1].system_attrs["constraints"] == (study.trials[-1].user_attrs["over"],)
    with pytest.raises(ValueError, match="constraints_func: NaN"):
        studied(AutotuneSampler(constraints_func=lambda trial: (math.nan,)), constrained, 1)


@pytest.mark.skipif(not hasattr(Trial, "set_constraint"), reason="this Optuna has no Trial.set_constraint")
def test_constraints_that_a_trial_sets_are_kept() -> None:
    def objective(trial: Trial) -> float:
        value = constrained(trial)
        trial.set_constraint("sum", trial.user_attrs["over"])
        return value

    study = studied(AutotuneSampler(seed=0), objective, 60)
    assert sum(trial.user_attrs["over"] <= 0.1 for trial in study.trials[20:]) >= 25


def test_a_small_feasible_region_is_found_by_the_amounts_of_the_violations() -> None:
    """A ball with 0.03 % of the volume: no random trial hits it, and no label shows where it is."""

    def objective(trial: Trial) -> float:
        x = [trial.suggest_float(f"x{place}", 0, 1) for place in range(4)]
        trial.set_user_attr("over", math.dist(x, (0.3, 0.6, 0.2, 0.8)) - 0.09)
        return x[0]

    for seed in range(3):
        sampler = AutotuneSampler(seed=seed, constraints_func=lambda trial: (trial.user_attrs["over"],))
        study = studied(sampler, objective, 40)
        kept = [trial.params["x0"] for trial in study.trials if trial.user_attrs["over"] <= 0]
        assert min(kept, default=1.0) < 0.25, (seed, kept)  # the least one is at 0.21


def test_a_pruned_trial_counts_by_what_it_reported() -> None:
    """If every trial with x above 0 is pruned after it reported a bad value, the search leaves that half."""

    def objective(trial: Trial) -> float:
        x = trial.suggest_float("x", -1, 1)
        trial.report(x, 0)
        if x > 0:
            raise optuna.TrialPruned
        return (x + 0.7) ** 2

    study = studied(AutotuneSampler(seed=0), objective, 30)
    assert sum(trial.params["x"] > 0 for trial in study.trials[12:]) <= 3
    assert study.best_value < 1e-3


def test_parallel_asks_do_not_crowd_together() -> None:
    apart = []
    for seed in range(4):
        study = studied(AutotuneSampler(seed=seed), integers, 12)
        batch = [study.ask() for _ in range(8)]
        for trial in batch:
            integers(trial)
        configs = [trial.params for trial in batch]
        apart += [sum(a[name] != b[name] for name in a) for a in configs for b in configs if a is not b]
    assert sum(apart) / len(apart) > 2.5  # 2.0 if running trials are ignored, 3.2 if they are


@pytest.mark.parametrize("space", [None, SPACE])
def test_threads_share_a_sampler(space: list[dict[str, int]] | None) -> None:
    study = optuna.create_study(sampler=AutotuneSampler(seed=0, space=space))
    study.optimize(bowl if space is None else listed, n_trials=30, n_jobs=4)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 30
    configs = [tuple(trial.params.items()) for trial in study.trials]
    assert len(set(configs)) == 30


def test_known_results_are_learned_from() -> None:
    study = optuna.create_study(sampler=AutotuneSampler(seed=0))
    study.add_trials(studied(RandomSampler(seed=0), bowl, 30).trials)
    study.optimize(bowl, n_trials=10)
    assert min(trial.value for trial in study.trials[30:] if trial.value is not None) < 0.05


def test_enqueued_parameters_are_kept_and_the_others_chosen() -> None:
    study = studied(AutotuneSampler(seed=0), bowl, 20)
    study.enqueue_trial({"x": 7.0})
    study.optimize(bowl, n_trials=1)
    assert study.trials[-1].params["x"] == 7.0
    assert abs(study.trials[-1].params["y"] - 3) < 4


# With a space.


def value(config: dict[str, int]) -> float:
    return (config["x"] - 5) ** 2 + (config["y"] - 2) ** 2


def sampler_of(study: optuna.Study) -> AutotuneSampler:
    assert isinstance(study.sampler, AutotuneSampler)
    return study.sampler


def listed(trial: Trial) -> float:
    return value({name: int(str(found)) for name, found in sampler_of(trial.study).suggest(trial).items()})


def test_only_feasible_configs_are_proposed_none_twice_and_the_study_ends_with_the_last() -> None:
    study = studied(AutotuneSampler(seed=0, space=SPACE), listed, 1000)
    assert sorted(map(str, (trial.params for trial in study.trials))) == sorted(map(str, SPACE))
    with pytest.raises(optuna.TrialPruned, match="all 43 feasible configs were proposed"):
        sampler_of(study).suggest(study.ask())


def test_plain_suggestions_give_the_chosen_config_as_well() -> None:
    def objective(trial: Trial) -> float:
        return value({name: trial.suggest_categorical(name, list(range(8))) for name in ("x", "y")})

    plain = studied(AutotuneSampler(seed=3, space=SPACE), objective, 20)
    assert all(trial.params in SPACE for trial in plain.trials)
    assert [t.params for t in plain.trials] == [
        t.params for t in studied(AutotuneSampler(seed=3, space=SPACE), listed, 20).trials
    ]


def test_families_are_told_apart_by_their_parameters_and_the_better_one_gets_the_trials() -> None:
    families: list[Mapping[str, CategoricalChoiceType]] = [
        *({"a": a, "b": b} for a in range(10) for b in range(10)),
        *({"a": a, "c": c, "mode": mode} for a in range(10) for c in (0.5, 1.5, 2.5) for mode in ("s", "t")),
    ]

    def objective(trial: Trial) -> float:
        config = sampler_of(trial.study).suggest(trial)
        return float(str(config["a"])) + (20 if "b" in config else float(str(config["c"])))

    study = studied(AutotuneSampler(seed=0, space=families), objective, 26)
    assert all(trial.params in families for trial in study.trials)
    assert study.best_value == 0.5
    assert sum("c" in trial.params for trial in study.trials[6:]) >= 14


def test_known_results_running_trials_and_enqueued_ones_of_a_space_are_not_proposed_again() -> None:
    study = optuna.create_study(sampler=AutotuneSampler(seed=0, space=SPACE))
    study.add_trials(studied(AutotuneSampler(seed=1, space=SPACE), listed, 20).trials)
    running = [study.ask() for _ in range(10)]
    for trial in running:
        sampler_of(study).suggest(trial)
    study.sampler = AutotuneSampler(seed=2, space=SPACE)  # as in another process: it only knows the study
    study.enqueue_trial(next(c for c in SPACE if c not in [trial.params for trial in study.trials]))
    study.optimize(listed, n_trials=13)
    assert sorted(map(str, (trial.params for trial in study.trials))) == sorted(map(str, SPACE))


def test_two_processes_that_ask_at_the_same_time_get_different_configs() -> None:
    storage, ask_now = optuna.storages.InMemoryStorage(), threading.Barrier(2)
    optuna.create_study(study_name="shared", storage=storage)

    def process(_number: int) -> None:  # shares only the storage with the other
        study = optuna.load_study(study_name="shared", storage=storage, sampler=AutotuneSampler(seed=0, space=SPACE))
        for _ in range(20):
            ask_now.wait(timeout=60)
            trial = study.ask()
            study.tell(trial, listed(trial))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(process, range(2)))
    trials = optuna.load_study(study_name="shared", storage=storage).trials
    assert len({str(trial.params) for trial in trials}) == len(trials) == 40


def test_what_is_enqueued_in_part_is_completed_to_a_feasible_config() -> None:
    study = optuna.create_study(sampler=AutotuneSampler(seed=0, space=SPACE))
    study.enqueue_trial({"x": 7})
    study.enqueue_trial({"x": 0, "y": 0})
    study.optimize(listed, n_trials=1)
    assert study.trials[0].params["x"] == 7
    assert study.trials[0].params in SPACE
    with pytest.raises(
        ValueError, match=r"trial 1 was enqueued: no feasible config that is left has \{'x': 0, 'y': 0\}"
    ):
        study.optimize(listed, n_trials=1)


def test_a_study_of_another_objective_starts_anew_with_the_same_sampler() -> None:
    sampler = AutotuneSampler(seed=0, space=SPACE)
    first, second = (studied(sampler, listed, 15) for _ in range(2))
    assert [trial.params for trial in first.trials] == [trial.params for trial in second.trials]


def test_wrong_use_is_named() -> None:
    with pytest.raises(ValueError, match="contains no configs"):
        AutotuneSampler(space=[])
    with pytest.raises(ValueError, match="a config has no parameters"):
        AutotuneSampler(space=[{}])
    with pytest.raises(ValueError, match="suggest needs the space"):
        AutotuneSampler().suggest(optuna.create_study().ask())
    study = optuna.create_study(sampler=AutotuneSampler(space=SPACE))
    with pytest.raises(ValueError, match="z is not a parameter of the feasible config"):
        study.ask().suggest_float("z", 0, 1)
    with pytest.raises(ValueError, match="minimises or maximises one value, the study has 2"):
        optuna.create_study(directions=["minimize", "maximize"], sampler=AutotuneSampler()).ask()


def test_the_documented_examples_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "search.md").read_text(encoding="utf-8")
    for_optuna, first, second = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    written: dict[str, optuna.Study] = {}
    few = for_optuna.replace('== "direct_strip"]', '== "direct_strip"][:20]')  # 200 take 3 s
    exec(few.replace("sqlite:///optuna.db", f"sqlite:///{tmp_path}/optuna.db"), written)
    assert len(written["study"].trials) == 20
    studies: dict[str, optuna.Study] = {}
    exec(first, studies)
    assert studies["study"].best_value < 0.1
    lists: dict[str, list[object]] = {}
    exec(second, lists)
    tables = len(lists["tables"])
    assert capsys.readouterr().out.splitlines()[1].startswith(f"{tables} of {tables} ")

"""Stopping at a small expected gain: it is reported, finished layers stay finished, and it works with any sampler."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autotune.errors import StudyError
from autotune.search.search import LOOK, Search
from autotune.store import Store
from autotune.study_reader import load_study
from autotune.trial import Trial
from tests.unit.search.spaces import ListedSpace, finished
from tests.unit.tiny import STUDY, Command, changed

H200 = Path(__file__).parents[2] / "tests" / "data" / "databases" / "report-layers.db"
SPACE = ListedSpace("gemm", {"m": list(range(20)), "n": list(range(20)), "mode": ["a", "b"]})


def cost(m: int, n: int, mode: str) -> float:
    """Microseconds: a bowl with a step."""
    return 100.0 + (m - 7) ** 2 + (n - 3) ** 2 + (50.0 if mode == "b" else 0.0)


def gains(sampler: str, budget: int, *, stop: int = 0) -> list[float | None]:
    """The expected gain before each evaluation; with `stop` the search ends there and starts again."""
    search = Search([SPACE], sampler=sampler, seed=1, budget=0, history=(), watch=True)
    trials: list[Trial] = []
    found = []
    for number in range(budget):
        if number and number == stop:
            search = Search([SPACE], sampler=sampler, seed=1, budget=0, history=trials, watch=True)
        found.append(search.expected_gain)
        config = search.ask(number)
        assert config is not None
        trials.append(finished(number, config, cost(**config.params)))  # type: ignore[arg-type]
        search.tell(trials[-1])
    return found


@pytest.mark.parametrize("sampler", ["default", "random"])
def test_the_expected_gain_is_unknown_at_first_and_then_shrinks(sampler: str) -> None:
    found = gains(sampler, 80)
    known = [gain for gain in found if gain is not None]
    assert found[: LOOK + 8] == [None] * (LOOK + 8)
    assert len(known) > 50
    assert all(gain > 0 for gain in known)
    assert min(known[-10:]) < (0.2 if sampler == "default" else 0.9) * known[0]


def test_a_resumed_search_expects_what_an_uninterrupted_one_does() -> None:
    assert gains("default", 60, stop=41)[42:] == pytest.approx(gains("default", 60)[42:])
    assert gains("default", 60, stop=41)[41] == pytest.approx(gains("default", 60)[41])


def test_a_study_stops_and_says_why_and_has_nothing_left_to_do(autotune: Command) -> None:
    words = ("tune", "fashion-k7", "--layer", "conv1", "--device", f"replay:{H200}", "--trials", 190)
    first = autotune(*words, "--min-gain", 0.02)
    assert first.code == 0
    (line,) = [line for line in first.err.splitlines() if "; stopped: " in line]
    gain = re.search(r"stopped: expected gain ([\d.]+)%, below 2\.00%$", line)
    assert gain is not None, line
    assert float(gain[1]) < 2
    with Store("autotune.db", create=False) as store:
        count = len(store.trials.list())
        best_us = min(row.median_us for row in store.best.list("fashion-k7.conv1"))
    assert 30 < count < 190
    assert best_us < 1.02 * 1130.4, "within the fraction of the best of all"
    again = autotune(*words, "--min-gain", 0.02)
    assert f"{count} evaluated (0 now)" in again.err
    assert "stopped: expected gain" in again.err
    assert "stopped: budget" in autotune(*words, "--trials", count + 5).err, "without the rule it goes on"


@pytest.mark.parametrize("value", ["0", "1", "-0.1", "true", '"low"', "nan", "1.5"])
def test_a_fraction_that_is_none_is_refused(tmp_path: Path, value: str) -> None:
    path = tmp_path / "small.toml"
    path.write_text(changed(STUDY, ("trials = 10", f"trials = 10\nmin_gain = {value}")))
    with pytest.raises(StudyError, match=r"min_gain: expected a fraction between 0 and 1"):
        load_study(path)


@pytest.mark.parametrize("value", ["0", "1", "little"])
def test_an_option_that_is_no_fraction_is_wrong_usage(autotune: Command, value: str) -> None:
    assert autotune("tune", "small.toml", "--min-gain", value).code == 2

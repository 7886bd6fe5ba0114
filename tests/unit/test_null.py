"""The null device: times and failures depend on the config alone."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from autotune.compilation.compile import Binary
from autotune.errors import DeviceError, Rejected
from autotune.evaluation.null import NullEvaluator, predicted_us
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.space import SearchSpace
from autotune.trial import Measured
from tests.unit.tiny import SMALL, bind, tiny

WIDE = ("[64, 32, 128, 256]", str(list(range(1, 257))))


@pytest.fixture
def sources(tmp_path: Path) -> list[KernelSource]:
    """Every feasible kernel of a wide family."""
    space = SearchSpace(bind(tiny(tmp_path, WIDE)))
    rendered = render(space.bound, space.config(0))
    return [rendered_as(rendered, space, row) for row in range(len(space.rows))]


def rendered_as(source: KernelSource, space: SearchSpace, row: int) -> KernelSource:
    """A source with another config; the null device ignores everything else."""
    return dataclasses.replace(source, config=space.config(row))


def outcome(device: NullEvaluator, source: KernelSource, best_us: float | None = None) -> Measured | str:
    """The result of a kernel."""
    try:
        binary: Binary = device.compile(source).result()
        return device.evaluate(source, binary, cache="cold", best_us=best_us)
    except Rejected as error:
        return f"{error.outcome} {error.reason}"


def test_without_options_everything_is_correct_and_takes_its_predicted_time(sources: Sequence[KernelSource]) -> None:
    device = NullEvaluator("")
    times = set()
    for source in sources:
        found = outcome(device, source)
        assert isinstance(found, Measured)
        assert found.timing.median_us == predicted_us(source)
        assert not found.too_slow
        times.add(found.timing.median_us)
    assert len(times) > 0.9 * len(sources), "times tell configs apart"
    ideal = 1 + SMALL.flops / 10e6
    assert ideal <= min(times) < max(times) < ideal * 2**4


def test_two_devices_agree(sources: Sequence[KernelSource]) -> None:
    options = "compile=0.2,wrong=0.2"
    first, second = NullEvaluator(options), NullEvaluator(options)
    assert [outcome(first, source) for source in sources] == [outcome(second, source) for source in sources]


def test_failures_come_in_the_shares_asked_for(sources: Sequence[KernelSource]) -> None:
    device = NullEvaluator("compile=0.1,crash=0.2,illegal_address=0.05,hang=0.15,wrong=0.1")
    found = [outcome(device, source) for source in sources]
    shares = Counter("correct" if isinstance(one, Measured) else one for one in found)
    expected = {
        "compile compile_error": 0.1,
        "runtime crash": 0.2,
        "runtime illegal_address": 0.05,
        "timeout hang": 0.15,
        "wrong_result wrong": 0.1,
        "correct": 0.4,
    }
    assert shares.keys() == expected.keys()
    for word, share in expected.items():
        assert shares[word] / len(sources) == pytest.approx(share, abs=0.03), word


def test_a_share_of_one_takes_all(sources: Sequence[KernelSource]) -> None:
    assert {str(outcome(NullEvaluator("hang=1"), source)) for source in sources[:50]} == {"timeout hang"}


def test_a_kernel_three_times_slower_than_the_best_is_stopped_early(sources: Sequence[KernelSource]) -> None:
    device = NullEvaluator("")
    time_us = predicted_us(sources[0])
    slow = outcome(device, sources[0], best_us=time_us / 3.01)
    assert isinstance(slow, Measured)
    assert slow.too_slow
    assert slow.timing.samples_us == (time_us,), "and keeps its time"
    close = outcome(device, sources[0], best_us=time_us / 2.99)
    assert isinstance(close, Measured)
    assert not close.too_slow


def test_every_evaluation_takes_its_delay(sources: Sequence[KernelSource]) -> None:
    slept: list[float] = []
    device = NullEvaluator("delay_ms=5,wrong=0.5", sleep=slept.append)
    for source in sources[:20]:
        outcome(device, source)
    assert slept == [0.005] * 20


def test_it_is_named_and_sequential() -> None:
    device = NullEvaluator("")
    assert (device.info.kind, device.info.arch, device.ahead) == ("null", 90, 1)


@pytest.mark.parametrize(
    "option",
    [
        "slow=0.5",
        "compile=1.5",
        "compile=-0.1",
        "compile",
        "compile=x",
        "=1",
        "delay_ms=nan",
        "delay_ms=inf",
        "hang=nan",
    ],
)
def test_an_option_that_does_not_exist(option: str) -> None:
    with pytest.raises(DeviceError) as caught:
        NullEvaluator(f"wrong=0.1,{option}")
    assert str(caught.value).startswith(f"null:{option}: expected NAME=SHARE with NAME one of compile, crash,")

"""A search uses one processor core, because the others compile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from autotune.search.threads import single_threaded
from tests.benchmarks.replay import replay_once
from tests.recorded_spaces import read_recording

SPACE = Path(__file__).parents[2] / "data" / "recorded-spaces" / "convolution-RTX_3090.json.gz"


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Linear algebra had two threads before."""
    with threadpool_limits(2, user_api="blas"):
        yield


def test_linear_algebra_has_one_thread_meanwhile() -> None:
    def threads() -> list[int]:
        return [int(pool["num_threads"]) for pool in threadpool_info() if pool["user_api"] == "blas"]

    before = threads()
    if not before:
        pytest.skip("numpy's linear algebra is none that threadpoolctl knows")
    assert set(before) == {2}
    with single_threaded():
        assert set(threads()) == {1}
    assert threads() == before


def test_a_search_uses_no_second_core() -> None:
    recording = read_recording(SPACE)
    whole, own = time.process_time(), time.thread_time()
    replay_once(recording, sampler="default", seed=0, evaluations=60)
    whole, own = time.process_time() - whole, time.thread_time() - own
    assert whole < 1.15 * own + 0.05

"""A worker lives as long as the process whose thread started it, and reports missing requirements."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from autotune.errors import DeviceError
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.problem import Conv2dProblem
from autotune.workers.worker import Opened, OpenRequest, Worker

pytestmark = pytest.mark.cxx


def test_worker_outlives_the_thread_that_started_it() -> None:
    started: list[Worker] = []

    def start() -> None:
        started.append(Worker())
        started[0].ask(OpenRequest("host"), 60.0)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    (worker,) = started
    try:
        assert isinstance(worker.ask(OpenRequest("host"), 60.0), Opened)
    finally:
        worker.kill()


def children() -> set[int]:
    """Processes that this one has started and that still run."""
    return {int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


def test_compilers_start_with_the_device_and_a_layer_whose_data_do_not_fit_is_named() -> None:
    before = children()
    evaluator = DeviceEvaluator(["host"], 3)
    try:
        assert len(children() - before) == 3 + 1
        width = (evaluator.info.memory_bytes >> 22) + 1  # 2**20 images of this many floats
        wide = Conv2dProblem(1 << 20, 1, 1, width, 1, 1, 1, stride_w=width)
        with pytest.raises(DeviceError) as caught:
            evaluator.begin_layer(wide)
        assert str(caught.value).startswith(f"host: {wide}: its data cannot be made: ")
        assert str(caught.value).endswith("exceed the memory of this machine")
    finally:
        evaluator.close()
    assert children() <= before

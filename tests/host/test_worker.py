"""A worker lives as long as the process that started it, whichever of its threads that was."""

from __future__ import annotations

import threading

import pytest

from autotune.evaluation.worker import Opened, OpenRequest, Worker

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

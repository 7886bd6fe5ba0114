"""A device that checks configs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autotune.api.device_names import binary_cache
from autotune.evaluation.evaluator import DeviceEvaluator


@pytest.fixture(scope="session")
def checked(binaries: None) -> Iterator[DeviceEvaluator]:
    """The host device with sanitizers; the configs share the verification programs through a cache."""
    evaluator = DeviceEvaluator(["host:check"], 1, cache=binary_cache())
    yield evaluator
    evaluator.close()

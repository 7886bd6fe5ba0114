"""The option that writes golden files anew, `pytest tests/templates --update-golden`; a device that checks configs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autotune.api.devices import binary_cache
from autotune.evaluation.evaluator import DeviceEvaluator


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files of tests/golden anew")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--update-golden", default=False))


@pytest.fixture(scope="session")
def checked(binaries: None) -> Iterator[DeviceEvaluator]:
    """The host device with sanitizers; the configs share the verification programs through a cache."""
    evaluator = DeviceEvaluator(["host:check"], 1, cache=binary_cache())
    yield evaluator
    evaluator.close()

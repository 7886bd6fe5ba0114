"""Cases of a parametrized test that only `pytest -m long` runs."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def long_run(*cases: tuple[object, ...]) -> list[object]:
    """These cases (values of the parameters) with the marker `long`."""
    return [pytest.param(*case, marks=pytest.mark.long) for case in cases]


def every(step: int, values: Iterable[object]) -> list[object]:
    """The values of one parameter: every `step`-th value in each run, the others only in the long run."""
    return [value if at % step == 0 else pytest.param(value, marks=pytest.mark.long) for at, value in enumerate(values)]

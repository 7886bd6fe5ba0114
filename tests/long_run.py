"""Cases of a parametrized test that the short run leaves out: `pytest -m long` runs them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def long_run(*cases: tuple[object, ...]) -> list[object]:
    """Cases, each the values of the parameters, under the marker `long`."""
    return [pytest.param(*case, marks=pytest.mark.long) for case in cases]


def every(step: int, values: Iterable[object]) -> list[object]:
    """The values of one parameter: the first and each `step`-th after it in every run, the others in the long one."""
    return [value if at % step == 0 else pytest.param(value, marks=pytest.mark.long) for at, value in enumerate(values)]

"""Cases of a parametrized test that the short run leaves out: `pytest -m long` runs them."""

from __future__ import annotations

import pytest


def long_run(*cases: tuple[object, ...]) -> list[object]:
    """Cases, each the values of the parameters, under the marker `long`."""
    return [pytest.param(*case, marks=pytest.mark.long) for case in cases]

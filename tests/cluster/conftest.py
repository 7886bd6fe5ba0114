"""Tests of clusters are left out where Dask is not installed."""

from __future__ import annotations

import pytest

pytest.importorskip("distributed", reason="Dask is not installed: pip install 'autotune-conv[cluster]'")

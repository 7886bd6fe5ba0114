"""The predictions of the model of times, seen from outside."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.search.gaussian_process import fit, posterior
from autotune.search.one_hot import Features
from autotune.search.search import family_of

from .spaces import ListedSpace


@pytest.mark.parametrize("seed", range(4))
def test_what_single_parameters_do_is_known_far_from_everything_measured(seed: int) -> None:
    """One config and those that differ from it in one value are measured; the model predicts the product over
    parameters.
    """
    space = ListedSpace("additive", {f"p{at}": [0, 1, 2, 3] for at in range(6)})
    effects = np.random.default_rng(seed).normal(size=(6, 4))
    log_times = effects[np.arange(6)[None, :], space.rows].sum(axis=1)
    differing = (space.rows != 1).sum(axis=1)
    measured, far = np.flatnonzero(differing <= 1), np.flatnonzero(differing >= 4)
    features = Features(family_of(space))
    codes = features.codes(measured)
    weights = fit(features.metric, codes, log_times[measured])
    mean, deviation = posterior(features.metric, codes, log_times[measured], weights).predict(features.codes(far))
    assert np.corrcoef(mean, log_times[far])[0, 1] > 0.95  # 0.87 to 0.92 if effects are not separated
    assert np.all(deviation > 0)


def test_a_measured_config_is_predicted_as_measured() -> None:
    space = ListedSpace("steps", {"a": [1, 2, 4, 8], "b": [1, 2, 3], "c": ["x", "y"]})
    rows = np.arange(0, len(space.rows), 3)
    log_times = np.cos(rows)
    features = Features(family_of(space))
    codes = features.codes(rows)
    conditioned = posterior(features.metric, codes, log_times, fit(features.metric, codes, log_times))
    mean, deviation = conditioned.predict(features.codes(np.arange(len(space.rows))))
    assert np.abs(mean[rows] - log_times).max() < 0.1
    others = np.setdiff1d(np.arange(len(space.rows)), rows)
    assert deviation[rows].max() < deviation[others].min()

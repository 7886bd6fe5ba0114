"""space -> features: configs as numbers: positions of their values in the header, and derived values on a layer.

Two configs of a family can be compared by these across layers and devices, whatever a study has narrowed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autotune.expressions.vectorized import Columns, column_of
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template import KernelTemplate
from autotune.trial import Config

Positions = npt.NDArray[np.intp]
Features = npt.NDArray[np.float32]


def positions_of(template: KernelTemplate, config: Config) -> Positions:
    """The positions of a config's values in the header."""
    values = config.params
    return np.array([param.values.index(values[param.name]) for param in template.params], dtype=np.intp)


def feasible_positions(space: SearchSpace) -> Positions:
    """The feasible configs by positions in the header, whatever a study has narrowed [configs, params]."""
    tables = [
        np.array([whole.values.index(value) for value in kept.values], dtype=np.intp)
        for whole, kept in zip(space.bound.template.params, space.params, strict=True)
    ]
    return np.stack([table[space.rows[:, column]] for column, table in enumerate(tables)], axis=1)


def features(bound: BoundTemplate, positions: Positions) -> Features:
    """The derived values of configs on a layer: logarithms of numbers, words one-hot [configs, features]."""
    columns = Columns({}, len(positions))
    found: list[npt.NDArray[np.generic]] = []
    for column, param in enumerate(bound.template.params):
        columns[param.name] = column_of(param.values)[positions[:, column]]
    for name, value in bound.derived:
        columns[name] = value.column(columns)
    for param in bound.template.params:
        if any(isinstance(value, str) for value in param.values):
            found += [np.equal(columns[param.name], value) for value in param.values]
        else:
            found.append(columns[param.name])
    found += [columns[name] for name, _ in bound.derived]
    numbers = np.stack([feature.astype(np.float32) for feature in found], axis=1)
    return np.asarray(np.sign(numbers) * np.log2(1 + np.abs(numbers)), dtype=np.float32)

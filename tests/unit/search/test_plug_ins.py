"""AutotuneSampler in other tools: a strategy of Kernel Tuner and a package of OptunaHub."""

from __future__ import annotations

import importlib.util
import json
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import optuna
import pytest

from autotune.search import AutotuneSampler
from autotune.search.kernel_tuner import Config, KernelTunerStrategy

PARAMS = {"block_size_x": [32, 64, 128, 256, 512, 1024], "block_size_y": [1, 2, 4, 8, 16], "unroll": [0, 1, 2, 4]}
SPACE: list[Config] = [config for config in product(*PARAMS.values()) if config[0] * config[1] <= 1024]
BEST = (128, 4, 2)


class StopCriterionReached(Exception):
    """The exception with which Kernel Tuner ends a run."""


def milliseconds(config: Config) -> float | None:
    """None for a config that does not compile."""
    x, y, unroll = (int(str(value)) for value in config)
    return None if x >= 256 and unroll != 2 else 1 + abs(x - 128) / 100 + abs(y - 4) / 4 + abs(unroll - 2)


def test_strategy_finds_the_best_config_and_none_twice() -> None:
    asked: list[Config] = []

    def cost(config: Config) -> float:
        if len(asked) == 30:
            raise StopCriterionReached
        asked.append(config)
        time = milliseconds(config)
        return sys.float_info.max if time is None else time

    with pytest.raises(StopCriterionReached):
        KernelTunerStrategy(seed=1)(cost, SimpleNamespace(list=SPACE, param_names=list(PARAMS)))
    assert len(set(asked)) == 30
    assert set(asked) <= set(SPACE)
    assert BEST in asked


def test_strategy_returns_the_best_of_a_space_that_ends() -> None:
    few = SimpleNamespace(list=[(1, "a"), (2, "b")], param_names=["n", "kind"])
    assert KernelTunerStrategy(seed=1)(lambda config: 3.0 - int(str(config[0])), few) == ((2, "b"), 1.0)


def test_kernel_tuner_runs_the_strategy(tmp_path: Path) -> None:
    kernel_tuner = pytest.importorskip("kernel_tuner")
    from kernel_tuner.strategies.wrapper import OptAlgWrapper

    costs = ("compile_time", "verification_time", "benchmark_time", "strategy_time", "framework_time", "overhead_time")
    cache = tmp_path / "cache.json"
    results = {
        ",".join(map(str, config)): {
            **dict(zip(PARAMS, config, strict=True)),
            "time": milliseconds(config) or "CompilationFailedConfig",
            "times": [milliseconds(config)] if milliseconds(config) else [],
            **dict.fromkeys(costs, 0),
            "timestamp": "2026-11-29T00:00:00+00:00",
        }
        for config in SPACE
    }
    head = {"device_name": "simulated", "kernel_name": "k", "problem_size": 4096, "objective": "time"}
    cache.write_text(
        json.dumps(head | {"tune_params_keys": list(PARAMS), "tune_params": PARAMS, "cache": results}), "utf-8"
    )
    found, _ = kernel_tuner.tune_kernel(
        "k",
        "__global__ void k(float *a) {}",
        4096,
        [np.zeros(4096, np.float32)],
        PARAMS,
        restrictions=["block_size_x * block_size_y <= 1024"],
        strategy=OptAlgWrapper(KernelTunerStrategy(seed=1)),
        strategy_options={"max_fevals": 30},
        simulation_mode=True,
        cache=str(cache),
        lang="CUDA",
    )
    assert len(found) == 30
    fastest = min((one for one in found if isinstance(one["time"], float)), key=lambda one: one["time"])
    assert tuple(fastest[name] for name in PARAMS) == BEST


def test_package_for_optunahub_gives_the_sampler() -> None:
    folder = Path(__file__).parents[3] / "docs" / "optunahub" / "samplers" / "autotune"
    spec = importlib.util.spec_from_file_location("package", folder / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    assert package.AutotuneSampler is AutotuneSampler
    names: dict[str, object] = {"optunahub": SimpleNamespace(load_module=lambda name: package)}
    exec((folder / "example.py").read_text("utf-8").replace("import optunahub\n", ""), names)
    study = names["study"]
    assert isinstance(study, optuna.Study)
    assert study.best_params == {"block_x": 32, "block_y": 8, "unroll": 4}
    assert (folder / "README.md").read_text("utf-8").startswith("---\nauthor: ")

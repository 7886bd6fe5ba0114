"""The stencil tuned by Kernel Tuner and by autotune, side by side, on the same kernels. Run by hand, on a GPU:

    pip install kernel_tuner==1.5.0
    python tests/benchmarks/kernel_tuner_stencil.py --strategy brute_force --evaluations 60

`stencil` is a port of Kernel Tuner's example of five points (examples/cuda/stencil.cu): block_size_x and block_size_y
are block_w and block_h; `rows`, weights and edges that are computed are new. Kernel Tuner is given each config's kernel
as the family renders it, and times it as it does, warm and without graphs; what each tool found best is then timed by
autotune, cold.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from kernel_tuner import tune_kernel

import autotune
from autotune.devices.backends import open_device
from autotune.family.render import render
from autotune.family.space import BoundTemplate
from autotune.family.template import load_template, template_files
from autotune.measurement.numpy_reference import numpy_reference
from autotune.shipped import shipped
from autotune.trial import Config

FAMILY = "stencil_rows"


def by_kernel_tuner(bound: BoundTemplate, strategy: str, evaluations: int) -> tuple[Config, float, int]:
    """Its best config, the microseconds that it measured, and how many configs it ran."""
    problem, names = bound.problem, [param.name for param in bound.template.params]
    sizes = {array.name: array.shape for array in problem.arrays}
    rng = np.random.default_rng(0)
    x, weights = (rng.standard_normal(sizes[name]).astype(np.float32) for name in ("x", "weights"))
    y = np.zeros(sizes["y"], np.float32)
    (expected,) = numpy_reference(
        problem, {"x": x.astype(np.float64).ravel(), "weights": weights.astype(np.float64).ravel()}
    )
    arguments = [x, weights, y, np.int32(problem.runtime_size)]

    def config(values: Mapping[str, int]) -> Config:
        return Config.of(FAMILY, {name: int(values[name]) for name in names})

    def feasible(values: Mapping[str, int]) -> bool:
        try:
            bound.check(config(values))
        except autotune.AutotuneError:
            return False
        return True

    results, _ = tune_kernel(
        FAMILY,
        lambda values: render(bound, config(values)).program.text,
        lambda values: render(bound, config(values)).stages[0].grid,
        arguments,
        {param.name: list(param.values) for param in bound.template.params},
        grid_div_x=[],
        grid_div_y=[],
        block_size_names=["block_w", "block_h", "block_d"],
        restrictions=feasible,
        answer=[None, None, expected.value.reshape(y.shape).astype(np.float32), None],
        atol=1e-4,
        lang="CUDA",
        compiler_options=["-std=c++17"],
        strategy=strategy,
        strategy_options={} if strategy == "brute_force" else {"max_fevals": evaluations},
        quiet=True,
    )
    timed = [result for result in results if isinstance(result["time"], float)]
    best = min(timed, key=lambda result: result["time"])
    return config(best), best["time"] * 1000.0, len(results)


def by_autotune(study: autotune.Study, db: Path, device: str) -> autotune.TuneResult:
    """The study tuned in a database."""
    return autotune.tune(study, db=db, device=device, fresh=True)


def kept_to(study: autotune.Study, configs: tuple[Config, ...]) -> autotune.Study:
    """The study with no other values than those of some configs."""
    values = [config.values() for config in configs]
    space = {name: tuple(dict.fromkeys(each[name] for each in values)) for name in values[0]}
    return dataclasses.replace(study, space={FAMILY: space}, trials=100)


def main() -> None:
    """Print what each tool found, and both once more by one clock."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--strategy", default="brute_force", help="Kernel Tuner's")
    parser.add_argument("--evaluations", type=int, default=60, help="of each tool; brute_force runs all")
    options = parser.parse_args()
    study = autotune.load_study(shipped("studies") / "stencil.toml")
    device = open_device(options.device)
    info = device.info
    device.close()
    template = load_template(template_files()[FAMILY])
    with tempfile.TemporaryDirectory() as folder:
        for layer in study.layers:
            one = dataclasses.replace(study, layers=(layer,), trials=options.evaluations, templates=(FAMILY,))
            began = time.monotonic()
            (ours,) = by_autotune(one, Path(folder) / "search.db", options.device).layers
            ours_s, began = time.monotonic() - began, time.monotonic()
            bound = BoundTemplate(template, layer.problem, info)
            theirs, theirs_us, count = by_kernel_tuner(bound, options.strategy, options.evaluations)
            theirs_s = time.monotonic() - began
            print(f"{layer.name}: autotune {ours.evaluated} configs in {ours_s:.0f} s")
            print(f"  Kernel Tuner: {count} configs in {theirs_s:.0f} s")
            if ours.best is None:
                print(f"  autotune found no kernel: {ours.why_not}")
                continue
            for who, config in (("autotune", ours.best.config), ("Kernel Tuner", theirs)):
                again = kept_to(one, (config,))
                (timed,) = by_autotune(again, Path(folder) / f"{who[0]}.db", options.device).layers
                median_us = timed.best.median_us if timed.best else None
                print(f"  {who}: {config}, {median_us or float('nan'):.2f} us cold")
            print(f"  Kernel Tuner's own clock, warm: {theirs_us:.2f} us")


if __name__ == "__main__":
    main()

"""Tune the stencil with Kernel Tuner and with autotune on the same kernels. Run by hand, on a GPU:

    pip install kernel_tuner==1.5.0
    python tests/benchmarks/kernel_tuner_stencil.py              # each tool has 10 s per layer: two minutes in total
    python tests/benchmarks/kernel_tuner_stencil.py --strategy brute_force --seconds 1200

`stencil` is a port of Kernel Tuner's example of five points (examples/cuda/stencil.cu): block_size_x and block_size_y
are block_w and block_h; `rows`, the weights and the computed edges are new. Kernel Tuner gets each config's kernel as
the family renders it and times it in its own way, warm and without graphs. autotune then times the best config of each
tool with a cold L2. Rows are printed as they are measured, so an interrupted run keeps them. Each config is printed on
standard error when it is timed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
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
from autotune.family.template_files import load_template, template_files
from autotune.measurement.numpy_reference import numpy_reference
from autotune.resources import shipped
from autotune.trial import Config

FAMILY = "stencil_rows"
MOST = 100_000  # evaluations; the time limit is reached first


def by_kernel_tuner(bound: BoundTemplate, strategy: str, seconds: float) -> tuple[Config, float, int]:
    """Its best config after this many seconds, the microseconds that it measured, and how many configs it ran."""
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

    with contextlib.redirect_stdout(sys.stderr):  # where it prints each config
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
            strategy_options={"max_fevals": MOST, "time_limit": seconds},
        )
    timed = [result for result in results if "__error__" not in result]
    if not timed:
        raise SystemExit(f"{problem}: Kernel Tuner timed none of {len(results)} configs in {seconds:.0f} s; give more")
    best = min(timed, key=lambda result: result["time"])
    return config(best), best["time"] * 1000.0, len(results)


def by_autotune(study: autotune.Study, db: Path, device: str) -> autotune.TuneResult:
    """The study tuned in a database."""

    def tell(trial: autotune.Trial, _: object) -> None:
        us = f"{trial.timing.median_us:.2f} us" if trial.timing else trial.outcome
        print(f"{trial.config}: {us}", file=sys.stderr, flush=True)

    return autotune.tune(study, db=db, device=device, fresh=True, finals_s=2.0, on_trial=tell)


def kept_to(study: autotune.Study, configs: tuple[Config, ...]) -> autotune.Study:
    """The study, limited to the values of some configs."""
    values = [config.params for config in configs]
    space = {name: tuple(dict.fromkeys(each[name] for each in values)) for name in values[0]}
    return dataclasses.replace(study, space={FAMILY: space}, trials=100)


def row(*cells: object) -> None:
    """Print a row of the table, flushed."""
    widths = (13, 13, 8, 7, 9)
    print(*(f"{cell!s:{width}}" for cell, width in zip(cells, widths, strict=False)), *cells[len(widths) :], flush=True)


def begun(layer: str, what: str) -> float:
    """The current time, with a note on standard error."""
    print(f"{layer}: {what} ...", file=sys.stderr, flush=True)
    return time.monotonic()


def main() -> None:
    """Print what each tool found, and time both results again with autotune."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--strategy", default="random_sample", help="Kernel Tuner's")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each tool for a layer")
    options = parser.parse_args()
    study = autotune.load_study(shipped("studies") / "stencil.toml")
    device = open_device(options.device)
    info = device.info
    device.close()
    template = load_template(template_files()[FAMILY])
    print("us: by the tool's own clock, autotune's cold, Kernel Tuner's warm")
    row("layer", "tool", "configs", "s", "us", "best")
    with tempfile.TemporaryDirectory() as folder:
        for layer in study.layers:
            searched = dataclasses.replace(study, layers=(layer,), trials=MOST, templates=(FAMILY,))
            one = dataclasses.replace(searched, time_budget_s=options.seconds)
            began = begun(layer.name, "autotune")
            (ours,) = by_autotune(one, Path(folder) / "search.db", options.device).layers
            if ours.best is None:
                row(layer.name, "autotune", ours.evaluated, "", "", ours.why_not)
                continue
            timing = ours.finals.timing if ours.finals else ours.best.timing
            own_us = f"{timing.median_us:.2f}" if timing else "-"
            row(layer.name, "autotune", ours.evaluated, f"{time.monotonic() - began:.0f}", own_us, ours.best.config)
            began = begun(layer.name, "Kernel Tuner")
            bound = BoundTemplate(template, layer.problem, info)
            theirs, theirs_us, count = by_kernel_tuner(bound, options.strategy, options.seconds)
            row(layer.name, "Kernel Tuner", count, f"{time.monotonic() - began:.0f}", f"{theirs_us:.2f}", theirs)
            both = kept_to(searched, (ours.best.config, theirs))
            begun(layer.name, "both by one clock")
            (timed,) = by_autotune(both, Path(folder) / f"{layer.name}.db", options.device).layers
            for config, cold_us in timed_by_finals(Path(folder) / f"{layer.name}.db", timed.name):
                for tool, found in (("autotune", ours.best.config), ("Kernel Tuner", theirs)):
                    if config == found:
                        row(layer.name, tool, "", "", "", f"{cold_us:.2f} us cold, in the same finals")


def timed_by_finals(db: Path, layer: str) -> list[tuple[Config, float]]:
    """Each finalist's config and its median."""
    with autotune.Store(db, create=False) as store:
        configs = {row.id: row.trial.config for row in store.trials.list(layer)}
        held = store.finals.list(layer)
        return [(configs[trial], timing.median_us) for trial, timing in held[-1].timings] if held else []


if __name__ == "__main__":
    main()

"""Measure what warm starts gain: tune each layer of some studies with few evaluations, without its own results.

    python tests/benchmarks/warm_start.py --device cuda:0 --db studies/recorded/h200.db

Prints a line for each layer: the best of the full search in the database, and the best of few evaluations as a multiple
of it. With `--cold` there is no warm start. `--device replay:studies/recorded/h200.db` needs no GPU, but can only
propose the recorded configs of a layer.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.api.device_names import evaluator_of
from autotune.devices.host_machine import usable_cores
from autotune.errors import StoreWarning
from autotune.evaluation.evaluator import Evaluator
from autotune.family.template_files import load_templates
from autotune.problem import Layer, Problem
from autotune.store import Store
from autotune.study import Study
from autotune.study_reader import find_study, load_study
from autotune.tuning.tune import tune

STUDIES = ("lenet-k5", "lenet-k7", "fashion-k7")
"""The six layers of the source reports."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The result of one layer, tuned without its own results."""

    layer: str
    full_us: float
    """best of the full search"""
    few_us: float
    """best of few evaluations"""


def leave_out(db: Path, evaluator: Evaluator, studies: Sequence[Study]) -> Iterator[LeftOut]:
    """Tune each layer of the studies with a copy of the database that has no results of it."""
    with tempfile.TemporaryDirectory() as folder:
        whole, copy = Path(folder) / "whole.db", Path(folder) / "copy.db"
        shutil.copy(db, whole)
        for study in studies:
            for layer in study.layers:
                shutil.copy(whole, copy)
                forget(copy, layer.problem)
                full_us = best_us(whole, study, layer, evaluator)
                yield LeftOut(f"{study.name}.{layer.name}", full_us, tuned_us(study, layer, evaluator, copy))


def best_us(db: Path, study: Study, layer: Layer, evaluator: Evaluator) -> float:
    """The best kernel of a layer on this device, or on the replayed one, in the accuracy classes that the study
    admits."""
    name, admitted = evaluator.info.name.removeprefix("replay of "), study.admitted(layer.problem)
    with Store(db, create=False) as store:
        found = [
            best.median_us
            for best in store.best.list(f"{study.name}.{layer.name}", kind="cuda")
            if best.row.device.name == name
            and best.row.measurement_mode == study.measure.cache
            and best.row.trial.accuracy in admitted
        ]
    if not found:
        raise SystemExit(f"{db} has no result of {study.name}.{layer.name} on {name}")
    return min(found)


def forget(db: Path, problem: Problem) -> None:
    """Hide every trial of a problem, at any n, by giving it a measurement mode that no query selects."""
    shape = [name for name in problem.values if name != "n"]
    same = " AND ".join(f"layers.{name} = ?" for name in shape)
    with closing(sqlite3.connect(db)) as connection, connection:
        connection.execute(
            "UPDATE trials SET measurement_mode = 'left out' WHERE tuning_target_id IN "
            f"(SELECT tuning_targets.id FROM tuning_targets JOIN layers ON layers.id = layer_id WHERE {same})",
            [problem.values[name] for name in shape],
        )
    connection.close()


def tuned_us(study: Study, layer: Layer, evaluator: Evaluator, db: Path) -> float:
    """The best time after the study's few evaluations; infinite if no kernel is correct."""
    with (
        warnings.catch_warnings(action="ignore", category=StoreWarning),  # bring an older file up to date
        Store(db) as store,
    ):
        (result,) = tune(study, load_templates(), evaluator, store, layers=(layer,))
    if result.finals:
        return result.finals.timing.median_us
    return result.best.median_us or float("inf") if result.best else float("inf")


def main() -> None:
    """Print a line for each layer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default=None)
    parser.add_argument("--db", type=Path, default=Path("studies/recorded/h200.db"))
    parser.add_argument("--evaluations", type=int, default=10)
    parser.add_argument("--cold", action="store_true", help="without a warm start")
    parser.add_argument("studies", nargs="*", default=STUDIES)
    arguments = parser.parse_args()
    studies = [
        replace(load_study(find_study(name)), trials=arguments.evaluations, warm_start=not arguments.cold)
        for name in arguments.studies
    ]
    evaluator = evaluator_of(arguments.device, usable_cores())
    try:
        for left in leave_out(arguments.db, evaluator, studies):
            print(
                f"{left.layer}: full search {left.full_us:.1f} us; {arguments.evaluations} evaluations "
                f"{left.few_us:.1f} us ({left.few_us / left.full_us:.3f})",
                flush=True,
            )
    finally:
        evaluator.close()


if __name__ == "__main__":
    main()

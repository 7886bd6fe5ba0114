"""The results database with a million trials: what answers, commits, opening and merging take. Run by hand:

    python tests/benchmarks/store.py --folder /tmp/million

Makes the database there once (2 GB in all, some minutes) and prints the median of each time beside its goal.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from autotune.devices.device import DeviceInfo, Environment
from autotune.problem import Conv2dProblem, Layer
from autotune.store import Store, StudyRecord, TemplateRecord, merge
from autotune.trial import Config, Outcome, Phases, Resources, Timing, Trial

STUDIES, LAYERS = 10, 50
"""500 layers in all"""
FAMILIES = ("direct", "implicit_gemm", "image_direct", "direct_strip")
DEVICE = DeviceInfo("cuda", "NVIDIA H200", 90, 132, 150_000_000_000)
ENVIRONMENT = Environment("580.159", "nvcc 13.0.88", "-O3")
FAILURES = ("constraints", "compile", "runtime", "timeout", "correctness")
DATE = "2026-11-20T12:00:00.{:06d}Z"


def problem(study: int, layer: int, n: int) -> Conv2dProblem:
    """A shape of its own for each layer."""
    return Conv2dProblem(n=n, c=study + 1, h=64, w=64, k=8 * (layer + 1), r=3, s=3)


def make(path: Path, trials: int, *, n: int, seed: int) -> None:
    """A database with so many trials, spread over the layers; the names through the store, the rows in bulk."""
    per_layer = trials // (STUDIES * LAYERS)
    scopes = []
    with Store(path) as store:
        for study in range(STUDIES):
            layers = tuple(Layer(f"layer{i}", problem(study, i, n)) for i in range(LAYERS))
            key = store.studies.begin(StudyRecord(f"study{study}", seed, "", layers))
            families = [TemplateRecord(family, "0" * 64, "") for family in FAMILIES]
            scopes += [store.scopes.open(key, layer, DEVICE, ENVIRONMENT, "cold", families) for layer in layers]
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("PRAGMA synchronous = OFF")
    raw.execute("BEGIN IMMEDIATE")
    rng = random.Random(seed)
    trial_id = 0
    for finals_id, scope in enumerate(scopes, 1):
        rows = list(_rows(rng, per_layer, trial_id, scope.layer_id, seed))
        _insert(raw, "sources", [source for source, _, _ in rows])
        ids: Row = {"study_id": scope.study.id, "subject_id": scope.subject_id, "device_id": scope.device_id}
        ids |= {"environment_id": scope.environment_id, "policy": "cold", "run_id": scope.run_id}
        _insert(raw, "trials", [{**ids, **trial} for _, trial, _ in rows])
        _insert(raw, "measurements", [timing for _, _, timing in rows if timing])
        best = sorted((timing for _, _, timing in rows if timing), key=_median)[:8]
        own = {name: ids[name] for name in ("study_id", "subject_id", "device_id", "environment_id", "policy")}
        _insert(raw, "finals", [{**own, "id": finals_id, "winner_trial_id": best[0]["trial_id"], "ended_at": "2026"}])
        _insert(raw, "measurements", [{**timing, "finals_id": finals_id} for timing in best])
        trial_id += per_layer
    raw.execute("COMMIT")
    raw.close()
    Store(path).close()


Row = dict[str, object]


def _rows(rng: random.Random, count: int, first: int, layer_id: int, seed: int) -> Iterator[tuple[Row, Row, Row]]:
    """Sources, trials and measurements of one layer; a measurement is empty where the trial failed."""
    for number in range(count):
        trial_id = first + number + 1
        config = {name: rng.randrange(8) for name in ("block_p", "block_q", "block_k", "unroll", "stages", "vector")}
        text = f"// kernel {seed} {trial_id}\n".encode()
        source: Row = {"id": trial_id, "hash": f"{seed:032x}{trial_id:032x}", "layer_id": layer_id, "text_zlib": text}
        source |= {"text_bytes": len(text), "entries": "[]", "flags": "[]", "launches": "{}"}
        source |= {"accuracy": "fp32", "deterministic": 1}
        correct = rng.random() < 0.7
        median_us = rng.lognormvariate(6, 1)
        trial: Row = {"id": trial_id, "number": number, "template_id": rng.randrange(len(FAMILIES)) + 1}
        trial |= {"config": json.dumps(config, separators=(",", ":")), "source_id": trial_id, "attempts": 1}
        trial |= {"outcome": "correct" if correct else rng.choice(FAILURES), "reason": "", "message": ""}
        trial |= {"accuracy": "fp32", "deterministic": 1, "registers": 64, "spill_bytes": 0, "smem_bytes": 4096}
        trial |= {"median_us": median_us if correct else None, "ranked_us": median_us if correct else None}
        trial |= dict.fromkeys(("render_us", "compile_us", "load_us", "verify_us", "measure_us"), 1.0)
        trial |= {"started_at": DATE.format(number), "ended_at": DATE.format(number + 1)}
        timing: Row = {}
        if correct:
            samples = json.dumps([round(median_us * (1 + i / 100), 3) for i in range(-5, 6)])
            timing = {"trial_id": trial_id, "cache": "cold", "sample_count": 11, "samples_us": samples}
            timing |= {"median_us": median_us, "q1_us": median_us * 0.97, "q3_us": median_us * 1.03}
        yield source, trial, timing


def _median(timing: Row) -> float:
    value = timing["median_us"]
    assert isinstance(value, float)
    return value


def _insert(raw: sqlite3.Connection, table: str, rows: list[Row]) -> None:
    names = list(rows[0])
    raw.executemany(
        f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})",
        [tuple(row.values()) for row in rows],
    )


def clocked(what: str, action: Callable[[], object], goal_ms: float, times: int) -> None:
    """Print the median of so many runs after one that warms up: wall clock, and CPU time for a busy machine."""
    spent = []
    for _ in range(times + 1):
        started, cpu = time.perf_counter(), time.process_time()
        action()
        spent.append(((time.perf_counter() - started) * 1e3, (time.process_time() - cpu) * 1e3))
    tell(what, spent[1:], goal_ms)


def tell(what: str, spent: Sequence[tuple[float, float]], goal_ms: float) -> None:
    """Print the medians of wall clock and CPU time beside the goal."""
    wall_ms, cpu_ms = (statistics.median(one) for one in zip(*spent, strict=True))
    print(f"{what:20} {wall_ms:9.2f} ms, CPU {cpu_ms:9.2f} ms, goal {goal_ms:g}", flush=True)


def commit(path: Path) -> list[tuple[float, float]]:
    """What committing a trial takes, wall clock and CPU time: half of beginning and ending one."""
    spent = []
    with Store(path) as store:
        layer = Layer("layer0", problem(0, 0, 1))
        key = store.studies.begin(StudyRecord("commits", 0, "", (layer,)))
        scope = store.scopes.open(key, layer, DEVICE, ENVIRONMENT, "cold", [TemplateRecord("direct", "0" * 64, "")])
        first = store.trials.next_number(scope)
        for number in range(first, first + 300):
            trial = _trial(number)
            started, cpu = time.perf_counter(), time.process_time()
            store.trials.end(store.trials.begin(scope, number, trial.config), trial)
            spent.append(((time.perf_counter() - started) / 2 * 1e3, (time.process_time() - cpu) / 2 * 1e3))
    return spent


def _trial(number: int) -> Trial:
    timing = Timing((1e6,) * 11, 1e6, 1e6, 1e6, "cold")
    resources, phases = Resources(64, 0, 0, 0), Phases(1, 1, 1, 1, 1)
    config = Config.of("direct", {"block_p": number})
    return Trial(number, config, Outcome.CORRECT, accuracy="fp32", resources=resources, timing=timing, phases=phases)


def main() -> None:
    """Make what is missing, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=1_000_000)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    path, other = arguments.folder / "million.db", arguments.folder / "other.db"
    for file, trials, n, seed in ((path, arguments.trials, 1, 1), (other, arguments.trials // 10, 1, 2)):
        if not file.exists():
            started = time.perf_counter()
            make(file, trials, n=n, seed=seed)
            print(
                f"{file}: {trials} trials, {file.stat().st_size / 1e6:.0f} MB in {time.perf_counter() - started:.0f} s"
            )
    Store(path).close()
    with Store(path, create=False) as store:
        clocked("best of one layer", lambda: store.best.list("study3.layer7"), 5, times=30)
        clocked("best of all layers", store.best.list, 200, times=10)
    tell("a trial committed", commit(path), 2)
    clocked("opened for writing", lambda: Store(path).close(), 50, times=20)
    clocked("opened for reading", lambda: Store(path, create=False).close(), 50, times=20)
    into = arguments.folder / "into.db"
    for what in ("merged", "merged again"):
        if what == "merged":
            shutil.copy(path, into)
        started, cpu = time.perf_counter(), time.process_time()
        merged = merge(other, into)
        spent = ((time.perf_counter() - started) * 1e3, (time.process_time() - cpu) * 1e3)
        tell(f"{merged.trials} {what}", [spent], 20_000)
    into.unlink()


if __name__ == "__main__":
    main()

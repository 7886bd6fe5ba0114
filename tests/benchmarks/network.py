"""How long compilers and the device are idle while a network is tuned, layer by layer and all layers concurrently.

    python tests/benchmarks/network.py [STUDY] [--trials 16] [--compile-ms 1000] [--delay-ms 30] [--compilers 16]
    python tests/benchmarks/network.py [STUDY] [--trials 16] --device cuda:0 --sampler default

Runs on the null device, whose compilations and measurements take the given times, or on another device, for which it
prints only the total time. Finals take equally long in both cases, and no kernel is compiled in advance.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

from autotune.api.device_names import evaluator_of
from autotune.devices.host_machine import usable_cores
from autotune.evaluation.evaluator import Evaluator
from autotune.evaluation.null import NullEvaluator
from autotune.family.template_files import load_templates
from autotune.store import Store
from autotune.study import Study
from autotune.study_reader import find_study, load_study
from autotune.tuning.layer_finals import FinalsPlan
from autotune.tuning.tune import tune

FINALS = FinalsPlan(budget_s=1.0, together_s=None)


class Busy:
    """Seconds slept by compilers, and by the device."""

    def __init__(self) -> None:
        self.seconds = {"compilers": 0.0, "device": 0.0}
        self._lock = threading.Lock()

    def sleep(self, seconds: float) -> None:
        """Sleep, and record for whom and how long."""
        before = time.perf_counter()
        time.sleep(seconds)
        with self._lock:
            who = "compilers" if threading.current_thread().name.startswith("null-compile") else "device"
            self.seconds[who] += time.perf_counter() - before


def measured(study: Study, evaluator: Evaluator, *, one_by_one: bool) -> tuple[str, float]:
    """Tune a study from an empty database; returns a description of the time, and the seconds."""
    families = load_templates()
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "network.db") as store:
        began = time.perf_counter()
        runs = [(layer,) for layer in study.layers] if one_by_one else [study.layers]
        results = [
            result
            for layers in runs
            for result in tune(study, families, evaluator, store, layers=layers, finals=FINALS)
        ]
        took_s = time.perf_counter() - began
    evaluator.close()
    return f"{took_s:.1f} s for {sum(result.new for result in results)} evaluations and {len(results)} finals", took_s


def main() -> None:
    """Tune in both ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", nargs="?", default="resnet50-fp16")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--compile-ms", type=float, default=1000)
    parser.add_argument("--delay-ms", type=float, default=30)
    parser.add_argument("--compilers", type=int, default=16)
    parser.add_argument("--sampler", default="random", help="the default one takes time of its own")
    parser.add_argument("--device", default="null")
    given = parser.parse_args()
    study = replace(load_study(find_study(given.study)), trials=given.trials, sampler=given.sampler, warm_start=False)
    options = f"compile_ms={given.compile_ms},delay_ms={given.delay_ms},compilers={given.compilers}"
    for words, one_by_one in (("side by side", False), ("layer by layer", True)):
        busy = Busy()
        null = given.device == "null"
        with tempfile.TemporaryDirectory() as cache:
            os.environ["XDG_CACHE_HOME"] = cache
            evaluator = NullEvaluator(options, sleep=busy.sleep) if null else evaluator_of(given.device, usable_cores())
            said, took_s = measured(study, evaluator, one_by_one=one_by_one)
        if null:
            shares = busy.seconds["device"] / took_s, busy.seconds["compilers"] / took_s / given.compilers
            said += f"; device busy {shares[0]:.0%}, compilers busy {shares[1]:.0%}"
        print(f"{words}: {said}", flush=True)


if __name__ == "__main__":
    main()

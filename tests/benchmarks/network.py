"""What the compilers and the device wait for while a network is tuned: layer by layer, and all layers side by side.

    python tests/benchmarks/network.py [STUDY] [--trials 16] [--compile-ms 1000] [--delay-ms 30] [--compilers 16]

Runs on the null device, whose compilations and measurements take the times given.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

from autotune.evaluation.null import NullEvaluator
from autotune.family.template_files import load_templates
from autotune.store import Store
from autotune.study import Study
from autotune.study_reader import find_study, load_study
from autotune.tuning.tune import tune


class Busy:
    """Seconds slept by compilers, and by the device."""

    def __init__(self) -> None:
        self.seconds = {"compilers": 0.0, "device": 0.0}
        self._lock = threading.Lock()

    def sleep(self, seconds: float) -> None:
        """Sleep, and note who did for how long."""
        before = time.perf_counter()
        time.sleep(seconds)
        with self._lock:
            who = "compilers" if threading.current_thread().name.startswith("null-compile") else "device"
            self.seconds[who] += time.perf_counter() - before


def measured(study: Study, options: str, compilers: int, *, one_by_one: bool) -> str:
    """Tune a study from nothing and say what it took."""
    busy, families = Busy(), load_templates()
    evaluator = NullEvaluator(options, sleep=busy.sleep)
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "network.db") as store:
        began = time.perf_counter()
        runs = [(layer,) for layer in study.layers] if one_by_one else [study.layers]
        results = [result for layers in runs for result in tune(study, families, evaluator, store, layers=layers)]
        took_s = time.perf_counter() - began
    evaluator.close()
    return (
        f"{took_s:.1f} s for {sum(result.new for result in results)} evaluations and {len(results)} finals; "
        f"device busy {busy.seconds['device'] / took_s:.0%}, "
        f"compilers busy {busy.seconds['compilers'] / took_s / compilers:.0%}"
    )


def main() -> None:
    """Tune both ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", nargs="?", default="resnet50-fp16")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--compile-ms", type=float, default=1000)
    parser.add_argument("--delay-ms", type=float, default=30)
    parser.add_argument("--compilers", type=int, default=16)
    parser.add_argument("--sampler", default="random", help="the default one takes time of its own")
    given = parser.parse_args()
    study = replace(load_study(find_study(given.study)), trials=given.trials, sampler=given.sampler, warm_start=False)
    options = f"compile_ms={given.compile_ms},delay_ms={given.delay_ms},compilers={given.compilers}"
    for words, one_by_one in (("layer by layer", True), ("side by side", False)):
        print(f"{words}: {measured(study, options, given.compilers, one_by_one=one_by_one)}", flush=True)


if __name__ == "__main__":
    main()

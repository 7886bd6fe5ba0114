"""Measure the time and memory of the search itself, on one core. Run by hand:

    python tests/benchmarks/search_cost.py

Prints seconds until a space of about 100,000 configs with ten constraints is ready, milliseconds of processor time per
proposal of the default sampler on it after 100, 500 and 1,000 trials, and the memory of the whole process.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from autotune.evaluation.null import NullEvaluator
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template_files import load_template
from autotune.problem import Conv2dProblem
from autotune.search.search import Search
from autotune.trial import Config, Outcome, Timing, Trial

FAMILY = """/*# kernel
summary  = "A family that does nothing, for its space."
supports = {}
arch     = {}
accuracy = "fp32"

[params]
block_p = { values = [1, 2, 4, 8, 16, 32],       doc = "rows" }
block_q = { values = [4, 8, 16, 32, 64, 128],    doc = "columns" }
per_p   = { values = [1, 2, 3, 4, 6, 8],         doc = "rows a thread" }
per_q   = { values = [1, 2, 3, 4, 6, 8],         doc = "columns a thread" }
per_k   = { values = [1, 2, 4, 8],               doc = "maps a thread" }
chunk   = { values = [1, 2, 4, 8],               doc = "channels a step" }
stages  = { values = [1, 2, 3, 4],               doc = "buffers" }
vector  = { values = [1, 2, 4],                  doc = "floats a load" }
unroll  = { values = [1, 2, 4],                  doc = "steps unrolled" }
filters = { values = ["global", "constant"],     doc = "where filters lie" }

[derived]
threads = "block_p * block_q"
tile_h  = "block_p * per_p + r - 1"
tile_w  = "block_q * per_q + s - 1"
smem    = "4 * tile_h * tile_w * chunk * stages"

[constraints]
"enough threads" = "threads >= 32"
"not too many threads" = "threads <= 1024"
"outputs fit registers" = "per_p * per_q * per_k <= 64"
"per_k divides k" = "k % per_k == 0"
"chunk divides c" = "c % chunk == 0"
"the tile fits" = "smem <= 12288"
"columns are whole vectors" = "block_q * per_q % vector == 0"
"vectors are read by one thread" = "per_q % vector == 0"
"stages need a loop" = "stages <= c // chunk"
"unrolled steps divide the loop" = "c // chunk % unroll == 0"

[[stage]]
entry = "f"
args = ["x", "w", "y", "n"]
block = ["block_q", "block_p", "1"]
grid = ["ceil_div(q, block_q * per_q)", "ceil_div(p, block_p * per_p)", "n"]
smem_bytes = "smem"
#*/
"""
PARAMS = ("block_p", "block_q", "per_p", "per_q", "per_k", "chunk", "stages", "vector", "unroll", "filters")
PROBLEM = Conv2dProblem(64, 64, 56, 56, 64, 3, 3)
SHARE_FAILING = 8  # one in this many configs fails


def cost_us(config: Config) -> float:
    """The time of a config; infinite for some."""
    values = config.params
    numbers = [int(values[name]) for name in PARAMS[:-1]]
    if sum(numbers) % SHARE_FAILING == 0:
        return float("inf")
    away = sum(abs(np.log2(number) - 1.5) for number in numbers)
    return float(100.0 + 7 * away + 5 * (values["filters"] == "global"))


def finished(number: int, config: Config) -> Trial:
    """The trial of a config."""
    time_us = cost_us(config)
    if time_us == float("inf"):
        return Trial(number, config, Outcome.RUNTIME, reason="crash")
    return Trial(number, config, Outcome.CORRECT, timing=Timing((time_us,), time_us, time_us, time_us, "cold"))


def large_space(folder: Path) -> SearchSpace:
    """The space of the family above; its template file is written to a folder."""
    path = folder / "costly.cu.j2"
    path.write_text(FAMILY + "".join(f"// ${{{name}}}\n" for name in PARAMS), encoding="utf-8")
    return SearchSpace(BoundTemplate(load_template(path), PROBLEM, NullEvaluator("").info))


def main() -> None:
    """Measure all three."""
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        space = large_space(Path(folder))
    ready_s = time.process_time() - started
    print(
        f"{len(space.rows)} feasible configs, {len(space.bound.rules)} rules: "
        f"ready in {ready_s:.2f} s of processor time, template read and all"
    )
    started = time.process_time()
    search = Search([space], sampler="default", seed=0, budget=2000, history=())
    print(f"search ready in {time.process_time() - started:.2f} s")
    spent_ms: list[float] = []
    for number in range(1001):
        started = time.process_time()
        config = search.ask(number)
        if config is None:
            break
        spent_ms.append(1e3 * (time.process_time() - started))
        search.tell(finished(number, config))
        if number in (100, 200, 500, 1000):
            print(
                f"{number} trials: {np.mean(spent_ms[-50:]):.1f} ms a proposal (mean of 50), "
                f"largest so far {max(spent_ms):.0f} ms"
            )
    print(f"mean of all: {np.mean(spent_ms):.1f} ms")
    print(f"memory of the whole process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB at most")


if __name__ == "__main__":
    main()

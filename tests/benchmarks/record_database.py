"""Record the results that the docs use: ladders with profiles, dispatchers, finals, retimes, streams. On a GPU:

    python tests/benchmarks/record_database.py --device cuda:0 --base studies/recorded/h200.db --out recorded.db
    python tests/benchmarks/record_database.py --device cuda:0 --steps rates,networks --trials 120 \
        --fastest 12 --out h100.db

Every step is a command that a user can type. The script runs them in order on the working database and prints the time
of each. Then it writes a small copy with the texts of only the best kernels, and
only the latest results of layers that were tuned again.
Run it again with the same working database to resume; `--steps` runs only some steps. If a command fails, the others
still run, and its error is printed at the end.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.store import Store
from tests.benchmarks.smaller_database import compact, shrink

REPORTS = ("000", "001", "002", "003", "004")
RULED = ("000", "003", "004")
"""reports that have a dispatch rule"""
STUDIES = ("lenet-k5", "lenet-k7", "fashion-k7")
STREAMED = ("conv1-n1000", "conv2-n1000", "conv2-n10000")
Autotune = Callable[[Sequence[str]], tuple[int, str]]
NETWORKS = (
    *("resnet50-fp16", "resnet50-fp16-n1", "resnet50-fp16-n8", "resnet50-bf16", "resnet50-tf32"),
    *("vgg16-fp16", "decoders-bf16", "resnext50-fp16", "depthwise-fp16", "efficientnet-b0-fp16", "regnety-fp16"),
    "gemm-networks",
)
STEPS = ("rates", "ladder", "dispatch", "tune", "retime", "profile", "streams", "networks")
"""the last step runs only if it is named, because it records another database"""
COUNTED = (
    "trials",
    "finals",
    "verdicts",
    "retimes",
    "profiles",
    "end_to_end_timings",
    "noise_floors",
    "rates",
    "dispatchers",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The options of a recording."""

    device: str
    steps: Sequence[str]
    reports: Sequence[str]
    profiled: bool
    ladder_trials: int | None
    """evaluations of a technique on a layer; None: the study's"""
    trials: int
    """evaluations of a layer"""

    def lines(self) -> Iterator[tuple[str, ...]]:
        """The words after `autotune`, without the database."""
        on = ("--device", self.device)
        profile = ("--profile",) if self.profiled else ()
        few = ("--trials", str(self.ladder_trials)) if self.ladder_trials else ()
        of_step: dict[str, list[tuple[str, ...]]] = {
            "rates": [("devices", "--calibrate")] if self.profiled else [],
            "ladder": [("ladder", f"reports/{report}", *on, *few, *profile) for report in self.reports],
            "dispatch": [
                ("dispatch", f"reports/{report}", *on, "--kernels", "3") for report in RULED if report in self.reports
            ],
            "tune": [("tune", study, *on, "--trials", str(self.trials)) for study in STUDIES],
            # A retime supersedes earlier finals, so the finals are repeated.
            "retime": [
                line
                for study in STUDIES
                for line in (("retime", study, *on, "--best", "1"), ("compare", study, *on, "--baseline", "cudnn"))
            ],
            "profile": [("profile", study, *on) for study in STUDIES] if self.profiled else [],
            "streams": [
                ("tune", "reports/001-streams", *on, *(word for layer in STREAMED for word in ("--layer", layer)))
            ],
            "networks": [
                ("tune", study, *on, "--trials", str(self.trials), "--baseline", _rival(study)) for study in NETWORKS
            ],
        }
        for step in self.steps:
            yield from of_step[step]


def _rival(study: str) -> str:
    return "cublas" if study.startswith("gemm") else "cudnn"


def as_process(words: Sequence[str]) -> tuple[int, str]:
    """Run `autotune` with these words; returns its exit status and output."""
    command = [sys.executable, "-m", "autotune", *words]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stderr


def run(line: Sequence[str], db: Path, autotune: Autotune) -> str:
    """Run one command; returns the last line of its output if it failed, else an empty string."""
    started = time.perf_counter()
    status, err = autotune([*line, "--db", str(db), "--json"])
    said = err.strip().splitlines()[-1:] or [f"exit status {status}"]
    failure = said[0] if status else ""
    print(f"{time.perf_counter() - started:6.1f} s  autotune {' '.join(line)}  {failure}", flush=True)
    return failure


def main(words: Sequence[str] | None = None, autotune: Autotune = as_process) -> int:
    """Record what the command line selects; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--base", type=Path, help="results to add to; only read")
    parser.add_argument("--db", type=Path, default=Path("recording.db"), help="working database; kept, to resume into")
    parser.add_argument("--out", type=Path, required=True, help="the small copy; overwritten")
    parser.add_argument("--steps", default=",".join(STEPS[:-1]), help="which, with commas; default: %(default)s")
    parser.add_argument("--reports", default=",".join(REPORTS), help="whose ladders; default: %(default)s")
    parser.add_argument("--ladder-trials", type=int, help="of a technique and layer; default: as the study says")
    parser.add_argument("--trials", type=int, default=300, help="of a layer that is tuned; default: %(default)s")
    parser.add_argument("--fastest", type=int, help="trials of a layer and accuracy class to keep; default: all")
    parser.add_argument("--no-profile", action="store_true", help="nothing that needs a GPU's counters or rates")
    arguments = parser.parse_args(words)
    steps, reports = arguments.steps.split(","), arguments.reports.split(",")
    for option, given, there_are in (("--steps", steps, STEPS), ("--reports", reports, REPORTS)):
        unknown = [word for word in given if word not in there_are]
        if unknown:
            parser.error(f"{option}: no {', '.join(unknown)}; there are {', '.join(there_are)}")
    if arguments.base is not None and not arguments.db.exists():
        shutil.copy(arguments.base, arguments.db)
    profiled = not arguments.no_profile
    plan = Plan(arguments.device, steps, reports, profiled, arguments.ladder_trials, arguments.trials)
    failed = [
        f"autotune {' '.join(line)}: {why}" for line in plan.lines() if (why := run(line, arguments.db, autotune))
    ]
    if arguments.db.exists():
        arguments.out.unlink(missing_ok=True)
        compact(arguments.db, arguments.out)
        shrink(
            arguments.out,
            best_texts_only=True,
            fastest=arguments.fastest,
            latest_only=True,
        )
        print(f"{arguments.out}: {arguments.out.stat().st_size / 1e6:.2f} MB, {counts(arguments.out)}")
    for failure in failed:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failed else 0


def counts(path: Path) -> str:
    """The number of rows in each table of results."""
    asked = ", ".join(f"(SELECT count(*) FROM {table}) AS {table}" for table in COUNTED)
    with Store(path, create=False) as store:
        found = store.query(f"SELECT {asked}")
    return ", ".join(f"{count!r} {table}" for table, count in zip(found.columns, found.rows[0], strict=True))


if __name__ == "__main__":
    sys.exit(main())

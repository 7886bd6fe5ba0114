"""Repeat the figures of README.md and docs/ on a GPU. Run from the root of a checkout:

    python -m tests.benchmarks.all --list
    python -m tests.benchmarks.all front               # README's tables
    python -m tests.benchmarks.all resnet50-fp16 lenet-k5 --folder figures

Each figure is one or more commands that a user can type. `--list` shows them with the pages that have their results and
the minutes of GPU time that they take on an H200 with 16 cores: for a study with bundled results, at least the minutes
of its longest recorded run; otherwise an estimate. The commands run one after another. Studies are tuned from an empty
database, FOLDER/figures.db; run a figure again to resume it. The output is printed and kept in FOLDER/NAME.txt. If a
command fails, the other figures still run.
"""

from __future__ import annotations

import argparse
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from autotune.resources import recorded_database

RECORDED = ("recorded", "recorded-networks", "recorded-convolutions")
"""bundled results of an H200"""


@dataclass(frozen=True, slots=True)
class Figure:
    """Results in README.md or docs/, and how to measure them again."""

    name: str
    pages: str
    minutes: int
    """of GPU time"""
    commands: tuple[str, ...]
    """what to type after `python -m`; {folder} is the folder of results"""
    front: bool = False
    """whether README.md shows it"""


def tuned(
    study: str,
    minutes: int,
    *,
    pages: str = "results.md",
    front: bool = False,
    rival: str | None = "cudnn",
    budget_s: int | None = None,
) -> Figure:
    """The figures of a study: tuned, in a total time where one is given, then listed with the rival's times."""
    database = f"{study} --db {{folder}}/figures.db"
    baseline = f" --baseline {rival}" if rival else ""
    budget = f" --time-budget-total {budget_s}" if budget_s else ""
    return Figure(
        study,
        pages,
        minutes,
        (f"autotune tune {database}{baseline}{budget}", f"autotune best {database}"),
        front,
    )


def whole(network: str, minutes: int, *, n: int = 64) -> Figure:
    """A network in PyTorch: its layers tuned, the whole timed next to eager PyTorch and `torch.compile`."""
    command = f"tests.benchmarks.networks {{folder}} {network} --n {n}"
    return Figure(f"{network}-network", "pytorch.md", minutes, (command,))


def untuned(
    network: str, options: str = "", *, n: int, minutes: int = 3, page: str = "pytorch.md", front: bool = False
) -> Figure:
    """A network in PyTorch with the kernels that `convert` chooses without tuning."""
    command = f"tests.benchmarks.networks {{folder}} {network} --n {n} --untuned{options}"
    return Figure(f"{network}-untuned", page, minutes, (command,), front)


def training(network: str) -> Figure:
    """A training step of a network in PyTorch, captured in a CUDA graph."""
    command = f"tests.benchmarks.training {{folder}} {network}"
    return Figure(f"{network}-training", "pytorch.md", 4, (command,), front=True)


def ladder(report: str) -> Figure:
    """The kernels of a source report, timed and profiled."""
    command = f"autotune ladder reports/{report} --profile --db {{folder}}/figures.db"
    return Figure(f"report-{report}", "ladder.md", 2, (command,))


FIGURES = (
    tuned("resnet50-fp16", 3, front=True),
    tuned("resnet50-tf32", 3, front=True),
    tuned("vgg16-fp16", 1, front=True),
    tuned("depthwise-fp16", 3, front=True),
    tuned("kernelbench-fp16", 5, front=True, budget_s=200),
    tuned("gemm-networks", 3, rival="cublas", front=True),
    tuned("lenet-k5", 1, front=True),
    tuned("gemm", 1, rival="cublas"),
    tuned("lenet-k7", 1),
    tuned("fashion-k7", 1),
    tuned("fp32-class", 1, rival=None),
    *(tuned(study, 3, rival=None) for study in ("tf32", "fp16")),
    tuned("resnet50-bf16", 2),
    tuned("resnet50-fp16-n8", 2),
    tuned("resnet50-fp16-n1", 2),
    tuned("decoders-bf16", 1),
    tuned("resnext50-fp16", 1),
    *(tuned(study, 1, rival=None) for study in ("efficientnet-b0-fp16", "regnety-fp16")),
    *(tuned(study, 1, rival=None) for study in ("max_pool2d", "softmax", "stencil")),
    *(tuned(f"{of}-gradients-bf16", 3, budget_s=100) for of in ("resnet50-data", "resnet50-filter", "grouped-3d")),
    tuned("flux-decoder-bf16", 2, budget_s=60),
    tuned("wan-decoder-bf16", 2, rival=None, budget_s=60),
    tuned("kernelbench-tf32", 7, budget_s=200),
    # cuDNN's benchmark mode takes up to 12 s for a layer in float32.
    *(tuned(f"kernelbench-{name}", 10, pages="experiments.md", budget_s=200) for name in ("fp32-class", "fp32")),
    tuned("kernelbench-level2-tf32", 6, pages="experiments.md", budget_s=200),
    tuned("kernelbench-tf32-nchw", 2, pages="experiments.md", rival=None, budget_s=60),
    tuned("depthwise-gradients-bf16", 3, pages="experiments.md", budget_s=28),
    Figure("kernelbench-chains", "results.md", 10, ("tests.benchmarks.kernelbench {folder}",)),
    tuned("upsampling-fp16", 3, pages="experiments.md"),
    *(tuned(f"conv-{name}", 2, pages="experiments.md", budget_s=60) for name in ("fp16", "tf32", "depthwise")),
    tuned("norms-bf16", 1, pages="experiments.md", rival=None, budget_s=40),
    tuned("resnet50-fp32-class", 3, pages="kernels.md"),
    *map(ladder, ("000", "001", "002", "003", "004")),
    *(whole(name, 4) for name in ("resnet18", "resnet50", "efficientnet_b0", "convnext_tiny", "densenet121")),
    untuned("densenet121", n=64, minutes=5, front=True),
    untuned(
        "wan_decoder",
        " --dtype bfloat16 --without compiled --without 'converted, compiled'",
        n=1,
        minutes=2,
        page="networks.md",
        front=True,
    ),
    untuned("flux_decoder", " --dtype bfloat16", n=1, page="networks.md"),
    *(untuned(name, n=64) for name in ("convnext_tiny", "efficientnet_b0")),
    *(untuned(name, n=32) for name in ("regnet_y_1_6gf", "vit_b_16")),
    untuned("unet", n=4),
    *(training(name) for name in ("resnet50", "convnext_tiny")),
)


def recorded_minutes(study: str) -> float | None:
    """The minutes of the longest run of a study in the bundled results; None if they have none."""
    longest = None
    for name in RECORDED:
        with closing(sqlite3.connect(f"{recorded_database(name).resolve().as_uri()}?mode=ro", uri=True)) as database:
            runs = database.execute(
                "SELECT 1440 * (julianday(max(t.ended_at)) - julianday(min(t.started_at)))"
                " FROM trials t JOIN studies s ON s.id = t.study_id WHERE s.name = ? GROUP BY t.study_id, t.run_id",
                (study,),
            )
            longest = max((minutes for (minutes,) in runs), default=longest)
    return longest


def listing(figures: Sequence[Figure]) -> Iterator[str]:
    """The lines of `--list`."""
    for figure in figures:
        page = f"README.md, docs/{figure.pages}" if figure.front else f"docs/{figure.pages}"
        recorded = recorded_minutes(figure.name)
        basis = "estimate" if recorded is None else f"recorded: {recorded:.1f}"
        yield f"{figure.name:30}{figure.minutes:2} min ({basis})  {page}"
        yield from (f"    python -m {command.format(folder='FOLDER')}" for command in figure.commands)
    yield f"{'together':30}{sum(figure.minutes for figure in figures):2} min"


def run(figure: Figure, folder: Path) -> bool:
    """Run the commands of a figure until one fails; returns whether none did."""
    with open(folder / f"{figure.name}.txt", "w") as kept:
        for command in figure.commands:
            words = shlex.split(command.format(folder=shlex.quote(str(folder))))
            print(f"$ python -m {shlex.join(words)}", flush=True)
            with subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.PIPE, text=True) as process:
                for line in process.stdout or ():
                    print(line, end="", flush=True)
                    kept.write(line)
            if process.returncode:
                return False
    return True


def main(words: Sequence[str] | None = None) -> int:
    """List or run what the command line names; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help="its name, or `front` for README's; default: all")
    parser.add_argument("--list", action="store_true", help="print the figures and their commands; run nothing")
    parser.add_argument("--folder", type=Path, default=Path("figures"), help="of the results; default: %(default)s")
    arguments = parser.parse_args(words)
    wanted = set(arguments.figures)
    unknown = wanted - {"front", *(figure.name for figure in FIGURES)}
    if unknown:
        parser.error(f"no figure {', '.join(sorted(unknown))}; --list shows all")
    chosen = [
        figure for figure in FIGURES if not wanted or figure.name in wanted or ("front" in wanted and figure.front)
    ]
    if arguments.list:
        print("\n".join(listing(chosen)))
        return 0
    arguments.folder.mkdir(parents=True, exist_ok=True)
    failed = [figure.name for figure in chosen if not run(figure, arguments.folder)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Functions for the cog blocks of README.md and docs/*.md: the rows of a command's answer, and Markdown made from them.

Commands run in a folder that has the checkout's `studies/` and `tests/`, and `recorded.db`, the unpacked
`tests/data/dispatch-40.db.gz`. So commands here are the same as on the page.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import shlex
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, wraps
from pathlib import Path
from statistics import geometric_mean
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import optuna
from click.testing import CliRunner

from autotune.cli import cli
from autotune.search.sampler import StudySampler

ROOT = Path(__file__).parents[1]


@cache
def said(command: str) -> str:
    """The standard output of `autotune COMMAND`."""
    with _folder(unpacked="recorded.db" in command.split()):
        done = CliRunner().invoke(
            cli, shlex.split(command), prog_name="autotune", catch_exceptions=False, terminal_width=80
        )
    assert done.exit_code == 0, f"autotune {command}: {done.stderr}"
    return done.stdout


def rows(command: str) -> list[SimpleNamespace]:
    """The rows of `autotune COMMAND --json`; a column is an attribute."""
    found: list[SimpleNamespace] = json.loads(said(f"{command} --json"), object_hook=lambda row: SimpleNamespace(**row))
    assert found, f"autotune {command}: no rows"
    return found


def network(study: str, db: str) -> list[SimpleNamespace]:
    """The best kernel of each of a study's layers, as `autotune best STUDY` lists them."""
    return [row for row in rows(f"best {study} --db {db}") if row.count is not None]


def compared(study: str, db: str) -> list[str]:
    """A study in numbers: its layers, floor, time, the fastest rivals' time, their ratio, and how many are slower."""
    layers = network(study, db)
    first = layers[0]
    slower = sum(row.verdict == "loss" for row in layers)
    return [
        str(sum(row.count for row in layers)),
        *(f"{us:.0f}" for us in (first.network_floor_us, first.network_us, first.network_rival_us)),
        f"{first.network_rival_us / first.network_us:.2f}",
        f"{slower} of {len(layers)}",
    ]


def compared_layer(row: SimpleNamespace) -> list[str]:
    """The same numbers for one layer."""
    times = [significant(us) for us in (row.floor_us, row.median_us, row.rival_us)]
    return ["1", *times, f"{row.rival_us / row.median_us:.2f}", f"{int(row.verdict == 'loss')} of 1"]


def spread(study: str, db: str) -> tuple[float, float]:
    """The speedups of a study's layers over their rivals: the smallest, and the geometric mean."""
    times = [row.rival_us / row.median_us for row in network(study, db)]
    return min(times), geometric_mean(times)


def layer(name: str, db: str) -> SimpleNamespace:
    """The best kernel of STUDY.LAYER in its study's table."""
    return next(row for row in network(name.partition(".")[0], db) if row.layer == name)


def wins() -> None:
    """Print a table of the families that have the best kernel of a recorded layer, with the studies."""
    networks = (
        "resnet50-fp16 resnet50-bf16 resnet50-tf32 resnet50-fp16-n8 resnet50-fp16-n1 vgg16-fp16 decoders-bf16"
        " resnext50-fp16 depthwise-fp16 gemm gemm-networks max_pool2d softmax stencil"
    )
    recorded = {
        "recorded": ("H200", "lenet-k5 lenet-k7 fashion-k7 fp32-class tf32 fp16"),
        "recorded-networks": ("H200", f"{networks} resnet50-fp32-class efficientnet-b0-fp16 regnety-fp16"),
        "recorded-h100": ("H100", networks),
    }
    found: dict[str, dict[str, Counter[str]]] = {}
    for db, (gpu, studies) in recorded.items():
        for study in studies.split():
            for row in network(study, db):
                found.setdefault(row.template, {}).setdefault(gpu, Counter())[study] += 1

    def listed(studies: Counter[str]) -> str:
        return ", ".join(f"{study} {count}" for study, count in studies.items()) or "-"

    table(
        "family | H200 | H100",
        [
            [f"`{family}`", *(listed(gpus.get(gpu, Counter())) for gpu in ("H200", "H100"))]
            for family, gpus in sorted(found.items())
        ],
    )


def session() -> None:
    """Print the README's commands on the recorded results, with their output."""
    print("\n```")
    console("best lenet-k5 --db recorded")
    console(
        'query --csv --db recorded "SELECT template, median_us, registers FROM best'
        " WHERE n = 10000 AND c = 1 AND h = 70 AND accuracy = 'fp32'\""
    )
    print("```\n")


def front() -> None:
    """Print the README's table of some studies and layers."""
    studies = [
        ("ResNet-50, FP16", "H200", "resnet50-fp16", "recorded-networks"),
        ("ResNet-50, TF32", "H200", "resnet50-tf32", "recorded-networks"),
        ("VGG-16, FP16", "H200", "vgg16-fp16", "recorded-networks"),
        ("depthwise layers of 3 networks, FP16", "H200", "depthwise-fp16", "recorded-networks"),
        ("34 convolutions of KernelBench, 1-D to 3-D, FP16", "H200", "kernelbench-fp16", "recorded-convolutions"),
        ("30 matrix products of networks, FP16 and BF16", "H200", "gemm-networks", "recorded-networks"),
    ]
    layers = [
        ("5x5, 1 to 12 channels, fp32, n = 10000", "H200", "lenet-k5.conv1", "recorded"),
        ("5x5, 12 to 24 channels, fp32, n = 10000", "H200", "lenet-k5.conv2", "recorded"),
        ("attention over 197 tokens, FP16", "H200", "gemm-networks.vit-b-values", "recorded-networks"),
    ]
    lines = [[what, gpu, *compared(study, db)] for what, gpu, study, db in studies]
    lines += [[what, gpu, *compared_layer(layer(name, db))] for what, gpu, name, db in layers]
    table("what | GPU | layers | floor, us | autotune, us | rival, us | times as fast | slower", lines)


def table(head: str, lines: Sequence[Sequence[object]]) -> None:
    """Print a Markdown table; `head` is its first line without the bars at both ends."""
    print(f"\n| {head} |\n{'|---' * (head.count(' | ') + 1)}|")
    for line in lines:
        print(f"| {' | '.join(map(str, line))} |")
    print()


def bars() -> None:
    """Print the bars of docs/kernelbench.svg: how many times as fast as cuDNN each layer is, in FP16 and TF32."""
    left, right, step, most = 48, 660, 16, 25
    studies = {name: network(f"kernelbench-{name}", "recorded-convolutions") for name in ("fp16", "tf32")}

    def x(times: float) -> float:
        return left + (right - left) * math.log(times / 0.8) / math.log(most / 0.8)

    height = 30 + step * len(studies["fp16"])
    for times in (1, 2, 5, 10, 20):
        kind = "equal" if times == 1 else "grid"
        print(f'<line class="{kind}" x1="{x(times):.1f}" x2="{x(times):.1f}" y1="20" y2="{height - 8}"/>')
        print(f'<text class="tick" x="{x(times):.1f}" y="14">{times}</text>')
    for line, layers in enumerate(zip(*studies.values(), strict=True)):
        y = 24 + step * line
        name = layers[0].layer.partition(".")[2]
        print(f'<text class="layer" x="{left - 18}" y="{y + 10}">{name}</text>')
        for lower, (study, row) in enumerate(zip(studies, layers, strict=True)):
            if row.rival_us is not None:
                start, end = sorted((x(1), x(row.rival_us / row.median_us)))
                where = f'x="{start:.1f}" width="{end - start:.1f}" y="{y + 6 * lower}" height="6"'
                print(f'<rect class="{study}" {where}/>')


def commands() -> None:
    """Print every command's help below the headings of `autotune --help`."""
    headings = re.findall(r"^(\w[\w ]*):\n((?:  .*\n)+)", said("--help"), re.MULTILINE)
    for heading, body in headings:
        if heading == "Options":
            continue
        names = re.findall(r"^  (\S+)  ", body, re.MULTILINE)
        print(f"\n## {heading}")
        for name in names:
            print(f"\n### {name}\n\n```\n{_without_shared_options(said(f'{name} --help')).strip()}\n```")
    print()


def _without_shared_options(text: str) -> str:
    """The help of a command without the options that docs/commands.md describes once."""
    shared = r"^  (?:--db|--json|--csv|-q|-h)\b.*\n(?:     .*\n)*"
    return re.sub(shared, "", text, flags=re.MULTILINE).removesuffix("\nOptions:\n")


def console(command: str) -> None:
    """Print a command with its output, as a terminal shows them."""
    print(f"$ autotune {command}")
    print("\n".join(line.rstrip() for line in said(command).splitlines() if line))


def optuna_calls(command: str) -> dict[str, int]:
    """How often a run calls each method of Optuna's study, and the study calls its sampler."""
    counts: Counter[str] = Counter()

    def counted(method: Callable[..., object]) -> Callable[..., object]:
        @wraps(method)
        def call(*words: object, **named: object) -> object:
            counts[method.__name__] += 1
            return method(*words, **named)

        return call

    with ExitStack() as patches:
        study = ((optuna.Study, name) for name in ("enqueue_trial", "ask", "tell"))
        for owner, name in (*study, (StudySampler, "sample_relative")):
            patches.enter_context(patch.object(owner, name, counted(getattr(owner, name))))
        said.__wrapped__(command)
    return dict(counts)


@cache
def findings(report: str) -> tuple[tuple[str, str, str, str], ...]:
    """The findings of a report, each with its ratios, the ratios of the recorded ladder, and whether they agree."""
    said_there = tomllib.loads((ROOT / "tests" / "data" / "report-findings.toml").read_text())[report]
    steps = {(row.layer, row.technique): row for row in rows(f"ladder reports/{report} --stored --db recorded")}
    lines = []
    for finding in said_there["finding"]:
        layers = finding.get("layers", said_there["layers"])
        new, old = (_steps_of(finding[side], layers, steps) for side in ("row", "over"))
        summed = finding.get("sum", False)
        here = _ratios([row.best_us for row in old], [row.best_us for row in new], summed=summed)
        there = finding.get("there")
        if not there and "says" not in finding:
            there = _ratios([row.reported_ms for row in old], [row.reported_ms for row in new], summed=summed)
        sides = [_side(ratio) for ratio in there] if there else [finding["says"]] * len(here)
        agree = [_side(ratio) == side for ratio, side in zip(here, sides, strict=True)]
        names = [f"layer {number}" for number, right in enumerate(agree, start=1) if right]
        lines.append(
            (
                finding["what"],
                " / ".join(f"{ratio:.3g}" for ratio in there) if there else finding["says"],
                " / ".join(f"{ratio:.3g}" for ratio in here),
                "yes" if all(agree) else "no" if not any(agree) else f"{names[0]} only",
            )
        )
    return tuple(lines)


def agreement() -> None:
    """Print how many of each report's findings agree."""
    answers = {report: Counter(line[-1] for line in findings(report)) for report in ("000", "001", "002", "003", "004")}
    table(
        "report | findings | agree | agree on one layer | do not agree",
        [
            [report, count.total(), count["yes"], count.total() - count["yes"] - count["no"], count["no"]]
            for report, count in answers.items()
        ],
    )


def counters(report: str) -> None:
    """Print a profiler's counters of a report's kernels: the report's and ours."""
    said_there = tomllib.loads((ROOT / "tests" / "data" / "report-findings.toml").read_text())[report]
    steps = {(row.layer, row.technique): row for row in rows(f"ladder reports/{report} --stored --db recorded")}
    lines = []
    for counter in said_there["counter"]:
        kernels = _steps_of(counter["row"], counter.get("layers", said_there["layers"]), steps)
        here = [counter.get("scale", 1) * _counter(row, counter) for row in kernels]
        lines.append([counter["what"], counter["there"], " / ".join(f"{value:.0f}" for value in here)])
    table(f"counted of report {report}'s kernels | there | here", lines)


def _counter(row: SimpleNamespace, counter: dict[str, Any]) -> float:
    """A column of a row, or the sum of byte counters over the launch's time, GB/s."""
    if "column" in counter:
        return float(getattr(row, counter["column"]))
    return float(sum(getattr(row, name) for name in counter["bytes"]) / row.time_us / 1e3)


def _steps_of(
    names: str | list[str], layers: list[str], steps: dict[tuple[str, str], SimpleNamespace]
) -> list[SimpleNamespace]:
    """A row of a ladder for each layer."""
    each = [names] * len(layers) if isinstance(names, str) else names
    return [steps[step] for step in zip(layers, each, strict=True)]


def _ratios(before: list[float], now: list[float], *, summed: bool) -> list[float]:
    """The speedups, for each layer or for all together."""
    if summed:
        return [sum(before) / sum(now)]
    return [old / new for old, new in zip(before, now, strict=True)]


def _side(ratio: float) -> str:
    """Times within 2 % count as the same."""
    return "same" if abs(ratio - 1) <= 0.02 else "faster" if ratio > 1 else "slower"


def profiled() -> None:
    """Print Nsight Compute's counters of report 003's kernels: the report's and ours."""
    there = [
        ("conv1-n10000", "fused product for each image, tile 32", (31, 8, 83.5, 78.6, 88.8, 70)),
        ("conv1-n10000", "one launch for all images, tile 32", (30, 8, 94, 78.7, 88.8, 70)),
        ("conv1-n10000", "tile 24", (30, 4.5, 80.6, 70.9, 80, 55.9)),
        ("conv2-n10000", "tile 24", (30, 4.5, 83.8, 76, 68.2, 56.4)),
        ("conv1-n1000", "tile 16", (30, 2, 95.8, 66.9, 80, 41.4)),
        ("conv2-n1000", "tile 24", (30, 4.5, 83.7, 76, 68.2, 56.4)),
    ]
    steps = {(row.layer, row.technique): row for row in rows("ladder reports/003 --stored --db recorded")}
    lines = []
    for layer, technique, values in there:
        row = steps[layer, technique]
        fractions = (
            *(row.achieved_occupancy, row.load_efficiency_fraction),
            *(row.store_efficiency_fraction, row.shared_efficiency_fraction),
        )
        here = (row.registers, row.smem_bytes / 1024, *(100 * fraction for fraction in fractions))
        pairs = [f"{old:g} / {round(new, 1):g}" for old, new in zip(values, here, strict=True)]
        lines.append([f"{technique}, {layer}", *pairs])
    table(
        "kernel | registers | shared, KiB | achieved occupancy, % | global loads, % | global stores, % | shared, %",
        lines,
    )


def im2col_shares() -> None:
    """Print im2col's share of the time of report 001's two kernels: the report's and ours."""
    there = {"conv1-n10000": 28.46 / 56.43, "conv2-n10000": 76.47 / 104.88}
    steps = [
        row
        for row in rows("ladder reports/001 --stored --db recorded")
        if row.technique == "im2col kernel and tiled product, batch in halves" and row.layer in there
    ]
    table(
        "layer | im2col there | here",
        [
            [row.layer, *(f"{100 * share:.0f} %" for share in (there[row.layer], row.launch_shares.conv2d_unroll))]
            for row in steps
        ],
    )


def significant(value: float, digits: int = 4) -> str:
    """A number with this many significant digits, without an exponent."""
    rounded = float(f"{value:.{digits}g}")
    places = max(0, digits - len(str(int(abs(rounded)))))
    return f"{rounded:.{places}f}"


@contextmanager
def _folder(*, unpacked: bool) -> Iterator[None]:
    """The folder in which commands run."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        for part in ("studies", "tests"):
            Path(name, part).symlink_to(ROOT / part)
        if unpacked:
            packed = ROOT / "tests" / "data" / "dispatch-40.db.gz"
            Path(name, "recorded.db").write_bytes(gzip.decompress(packed.read_bytes()))
        os.chdir(name)
        try:
            yield
        finally:
            os.chdir(before)

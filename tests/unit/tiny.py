"""A small family with a correct kernel, small problems, and the command line as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.devices.device import DeviceInfo
from autotune.evaluation.null import NullEvaluator
from autotune.family.space import Admission, BoundTemplate
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_template
from autotune.problem import Conv2dProblem, Problem

TINY = """/*# kernel
summary  = "One output a thread and turn; a block of threads walks over the outputs."
supports."there is one group" = "groups == 1"
supports."layout is NCHW" = "layout == 'nchw'"
supports."dtype is f32" = "dtype == 'f32'"
supports."there is no epilogue" = "epilogue == 'none'"
arch     = { "compute capability 7.0 or newer" = "device.arch >= 70" }
accuracy = "fp32"

[params]
threads = { values = [64, 32, 128, 256], doc = "threads a block" }
turns   = { values = [1, 2, 3, 4, 6],    doc = "outputs a thread" }
order   = { values = ["rows", "taps"],   doc = "which loop is outside" }
fast    = { values = [false, true],      doc = "unroll the inner loop" }

[derived]
outputs = "threads * turns"

[constraints]
"a block computes at most 512 outputs" = "outputs <= 512"
"unrolling needs the taps inside" = "not fast or order == 'rows'"

[[stage]]
entry = "conv2d_tiny"
args  = ["x", "w", "y", "n"]
block = ["threads", "1", "1"]
grid  = ["ceil_div(n * k * p * q, outputs)", "1", "1"]
#*/
constexpr int C = ${c}, H = ${h}, W = ${w};
constexpr int K = ${k}, R = ${r}, S = ${s};
constexpr int P = ${p}, Q = ${q};
constexpr int STRIDE_H = ${stride_h}, STRIDE_W = ${stride_w};
constexpr int PAD_H = ${pad_h}, PAD_W = ${pad_w};
constexpr int DILATION_H = ${dilation_h}, DILATION_W = ${dilation_w};
constexpr int THREADS = ${threads}, TURNS = ${turns};

__device__ float product(const float* x, const float* w, long long image, int map, int row, int column,
                         int channel, int tap_r, int tap_s) {
    const int at_h = row * STRIDE_H - PAD_H + tap_r * DILATION_H;
    const int at_w = column * STRIDE_W - PAD_W + tap_s * DILATION_W;
    if (at_h < 0 || at_h >= H || at_w < 0 || at_w >= W) return 0.0f;
    return x[((image * C + channel) * H + at_h) * W + at_w] * w[((map * C + channel) * R + tap_r) * S + tap_s];
}

extern "C" __global__ void conv2d_tiny(const float* x, const float* w, float* y, int n) {
    for (int turn = 0; turn < TURNS; ++turn) {
        const long long at = (blockIdx.x * 1ll * TURNS + turn) * THREADS + threadIdx.x;
        if (at >= 1ll * n * K * P * Q) return;
        const int column = at % Q, row = at / Q % P, map = at / (Q * P) % K, image = at / (Q * P * K);
        float sum = 0.0f;
//% if order == "rows"
        for (int channel = 0; channel < C; ++channel)
            for (int r = 0; r < R; ++r)
//% if fast
#pragma unroll
//% endif
                for (int s = 0; s < S; ++s) sum += product(x, w, image, map, row, column, channel, r, s);
//% else
        for (int r = 0; r < R; ++r)
            for (int s = 0; s < S; ++s)
                for (int channel = 0; channel < C; ++channel)
                    sum += product(x, w, image, map, row, column, channel, r, s);
//% endif
        y[at] = sum;
    }
}
"""
"""16 * 5 = 80 configs without the constraints."""

SMALL = Conv2dProblem(3, 2, 9, 8, 4, 3, 3)
DEVICE = NullEvaluator("").info

STUDY = """name = "small"
trials = 10
[[layer]]
name = "one"
n = 3
c = 2
h = 9
w = 8
k = 4
r = 3
s = 3
"""


def changed(text: str, *edits: tuple[str, str]) -> str:
    """A text in which each edit's first string, which must be there, is replaced by the second."""
    for old, new in edits:
        assert text.count(old) >= 1, f"{old!r} is not in the text"
        text = text.replace(old, new, 1)
    return text


def write_family(folder: Path, *edits: tuple[str, str], name: str = "tiny") -> Path:
    """The tiny family, edited, as a template file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.cu.j2"
    path.write_text(changed(TINY, *edits), encoding="utf-8")
    return path


def tiny(folder: Path, *edits: tuple[str, str], name: str = "tiny") -> KernelTemplate:
    """The tiny family, edited, written and loaded."""
    return load_template(write_family(folder, *edits, name=name))


def bind(
    template: KernelTemplate,
    problem: Problem = SMALL,
    device: DeviceInfo = DEVICE,
    admission: Admission | None = None,
) -> BoundTemplate:
    """A family bound to a problem and a device."""
    return BoundTemplate(template, problem, device, admission or Admission())


@dataclass(frozen=True, slots=True)
class Finished:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line of a failed command, without the prefix `autotune: `.

        Asserts exit code 1, nothing on standard output, and no other line on standard error except the one that names
        the device.
        """
        assert self.code == 1, f"exit code {self.code}\n{self.out}\n{self.err}"
        assert self.out == ""
        lines = [line for line in self.err.splitlines() if not line.startswith("device ")]
        assert len(lines) == 1, self.err
        assert lines[0].startswith("autotune: ")
        assert lines[0].isprintable()
        return lines[0].removeprefix("autotune: ")


Command = Callable[..., Finished]
"""Runs `autotune` with the given words."""


def run_module(folder: Path, *words: str, env: Mapping[str, str] | None = None) -> Finished:
    """`python -m autotune` in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=120,
        env={**os.environ, **(env or {})},
    )
    return Finished(done.returncode, done.stdout, done.stderr)

"""Named problems, and problems drawn at random, for tests of rules that hold for every problem."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Mapping

from autotune.errors import StudyError
from autotune.operation.registry import operation
from autotune.problem import Conv2dProblem, Problem, make_problem

AWKWARD: Mapping[str, Conv2dProblem] = {
    "small": Conv2dProblem(2, 3, 9, 11, 5, 3, 3),
    "stride": Conv2dProblem(3, 6, 23, 21, 7, 3, 5, stride_h=2, stride_w=2, pad_h=1, pad_w=2, epilogue="bias_relu"),
    "half_nhwc": Conv2dProblem(2, 8, 11, 13, 24, 3, 3, pad_h=1, pad_w=1, dtype="f16", layout="nhwc"),
    "groups": Conv2dProblem(2, 6, 13, 11, 9, 3, 3, groups=3, pad_h=1, pad_w=1),
    "dilation": Conv2dProblem(
        2, 3, 19, 23, 4, 3, 3, stride_h=1, stride_w=3, pad_h=2, pad_w=1, dilation_h=2, dilation_w=3
    ),
    "bfloat": Conv2dProblem(2, 4, 12, 9, 6, 3, 3, dtype="bf16"),
    "lenet2": Conv2dProblem(3, 12, 17, 17, 24, 5, 5),
    "half": Conv2dProblem(3, 3, 13, 15, 8, 3, 3, dtype="f16", epilogue="bias_relu"),
    "nhwc": Conv2dProblem(2, 5, 13, 11, 6, 3, 3, pad_h=1, pad_w=1, layout="nhwc", epilogue="bias"),
    "tall": Conv2dProblem(2, 5, 41, 5, 6, 7, 1, pad_h=3),
    "depthwise": Conv2dProblem(2, 8, 15, 15, 8, 3, 3, groups=8, pad_h=1, pad_w=1, stride_h=2, stride_w=2),
    "wide": Conv2dProblem(2, 2, 6, 75, 8, 2, 7, epilogue="bias"),
    "pointwise": Conv2dProblem(3, 17, 9, 7, 33, 1, 1),
    "plain": Conv2dProblem(5, 4, 17, 19, 12, 5, 5),
    "one": Conv2dProblem(1, 1, 7, 7, 1, 7, 7),
    "lenet1": Conv2dProblem(3, 1, 30, 30, 12, 5, 5),
    "half_nhwc_odd": Conv2dProblem(
        3, 3, 23, 21, 7, 3, 5, 2, 2, pad_h=1, pad_w=2, dtype="f16", layout="nhwc", epilogue="bias_relu"
    ),
    "bfloat_nhwc": Conv2dProblem(2, 12, 11, 10, 12, 3, 3, dtype="bf16", layout="nhwc", epilogue="bias"),
    "half_single": Conv2dProblem(3, 1, 16, 22, 6, 3, 5, pad_h=1, pad_w=2, dtype="f16", epilogue="bias_relu"),
    "bfloat_nhwc_single": Conv2dProblem(2, 1, 15, 18, 10, 7, 7, dtype="bf16", layout="nhwc", epilogue="bias"),
    "half_depthwise": Conv2dProblem(
        2, 6, 17, 28, 12, 5, 5, pad_h=2, pad_w=2, groups=6, dtype="f16", epilogue="bias_relu"
    ),
    "depthwise_nhwc": Conv2dProblem(2, 24, 11, 14, 24, 3, 3, pad_h=1, pad_w=1, groups=24, layout="nhwc"),
    "bfloat_depthwise_nhwc": Conv2dProblem(
        3, 12, 9, 13, 12, 1, 7, 1, 2, pad_w=3, groups=12, dtype="bf16", layout="nhwc", epilogue="bias"
    ),
    "stem": Conv2dProblem(
        3, 3, 21, 30, 40, 7, 7, 2, 2, pad_h=3, pad_w=3, dtype="f16", layout="nhwc", epilogue="bias_relu"
    ),
    "float_nhwc": Conv2dProblem(2, 36, 9, 8, 20, 3, 3, 2, 2, pad_h=1, pad_w=1, layout="nhwc", epilogue="bias_relu"),
    "deep": Conv2dProblem(4, 30, 9, 19, 42, 3, 3, stride_w=2, pad_h=1, pad_w=1, epilogue="bias_relu"),
    "half_groups_nhwc": Conv2dProblem(
        3, 72, 13, 11, 72, 3, 3, 2, 1, pad_h=1, pad_w=1, groups=18, dtype="f16", layout="nhwc", epilogue="bias_relu"
    ),
    "wide_depthwise": Conv2dProblem(3, 5, 18, 21, 5, 7, 7, pad_h=3, pad_w=3, groups=5, epilogue="bias"),
    "half_depthwise_nhwc": Conv2dProblem(
        3, 24, 9, 19, 24, 5, 5, pad_h=2, pad_w=2, groups=24, dtype="f16", layout="nhwc", epilogue="bias_relu"
    ),
}

CONV, CONV_TRANSPOSE, GEMM = map(operation, ("conv", "conv_transpose", "gemm"))
FILTER_GRADIENT = operation("conv_filter_gradient")
AVG_POOL2D, CONCAT, GATE, MAX_POOL2D, NORM, PIXEL_MEAN, SOFTMAX, STENCIL = map(
    operation, ("avg_pool2d", "concat", "gate", "max_pool2d", "norm", "pixel_mean", "softmax", "stencil")
)
CONV_STATISTICS, NORM_APPLY = map(operation, ("conv_statistics", "norm_apply"))
STATISTICS_PROBLEMS: Mapping[str, Problem] = {
    label: make_problem(CONV_STATISTICS, {**sizes, "n": 2, "layout": "nhwc", "dtype": dtype, "epilogue": epilogue})
    for label, dtype, epilogue, sizes in (
        ("same", "bf16", "bias", {"c": 8, "h": 8, "w": 16, "k": 24, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1}),
        ("rows", "f16", "bias_add_silu", {"c": 8, "h": 8, "w": 8, "k": 72, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1}),
        ("pointwise", "bf16", "bias_add", {"c": 48, "h": 8, "w": 16, "k": 72, "r": 1, "s": 1, "groups": 3}),
    )
}
"""Problems of `conv_statistics`, with padding between the rows of windows and below them."""
CONV_PROBLEMS: Mapping[str, Problem] = {
    label: make_problem(CONV, {**sizes, **words, "n": 2})
    for label, words, sizes in (
        (
            *("video", {"epilogue": "bias_relu"}),
            {"c": 3, "d": 4, "h": 7, "w": 9, "k": 5, "t": 3, "r": 3, "s": 3, "stride_h": 2, "stride_w": 2}
            | {"pad_d": 1, "pad_d_end": 1, "pad_h": 1, "pad_h_end": 1},
        ),
        (
            *("causal", {"layout": "nhwc", "dtype": "bf16", "epilogue": "bias"}),
            {"c": 16, "d": 5, "h": 9, "w": 10, "k": 24, "t": 3, "r": 3, "s": 3}
            | {"pad_d": 2, "pad_h": 1, "pad_h_end": 1, "pad_w": 1, "pad_w_end": 1},
        ),
        (
            *("frames", {"layout": "nhwc", "dtype": "f16"}),
            {"c": 64, "d": 6, "h": 5, "w": 8, "k": 72, "t": 3, "s": 1, "dilation_d": 2, "pad_d": 4, "stride_d": 2},
        ),
        (
            *("signal", {"layout": "nhwc", "epilogue": "bias_add_silu"}),
            {"c": 8, "w": 75, "k": 12, "s": 3, "dilation_w": 4, "pad_w": 8},
        ),
        (
            *("same", {}),
            {"c": 6, "h": 12, "w": 11, "k": 9, "r": 3, "s": 3, "stride_h": 2, "stride_w": 2, "groups": 3}
            | {"pad_h_end": 1, "pad_w_end": 1},
        ),
        (
            *("depthwise video", {"layout": "nhwc", "epilogue": "bias_relu"}),
            {"c": 12, "d": 5, "h": 9, "w": 7, "k": 12, "t": 3, "r": 3, "s": 3, "groups": 12, "stride_d": 2}
            | {"pad_d": 2, "pad_h": 1, "pad_h_end": 2, "pad_w": 1},
        ),
        (
            *("cached", {"layout": "nhwc", "dtype": "bf16", "epilogue": "bias"}),
            {
                "c": 16,
                "d": 3,
                "h": 8,
                "w": 12,
                "k": 24,
                "t": 3,
                "r": 3,
                "s": 3,
                "cache_d": 2,
                "pad_h": 1,
                "pad_h_end": 1,
            }
            | {"pad_w": 1, "pad_w_end": 1},
        ),
        (
            *("cached planes", {"epilogue": "bias_add"}),
            {
                "c": 6,
                "d": 2,
                "h": 5,
                "w": 7,
                "k": 4,
                "t": 3,
                "r": 2,
                "s": 3,
                "cache_d": 3,
                "pad_d": 1,
                "pad_w": 1,
                "groups": 2,
            },
        ),
        (
            *("first", {"layout": "nhwc", "dtype": "f16", "epilogue": "bias_relu"}),
            {"c": 3, "d": 4, "h": 9, "w": 10, "k": 16, "t": 3, "r": 3, "s": 3, "pad_d": 2, "pad_h": 1, "pad_w": 1},
        ),
        (
            *("depthwise signal", {"dtype": "f16", "epilogue": "bias_silu"}),
            {"c": 6, "w": 75, "k": 12, "s": 4, "groups": 6, "pad_w": 3},
        ),
    )
}
"""Problems of `conv` with one to three dimensions, padded on one side or on both."""
TRANSPOSED_PROBLEMS: Mapping[str, Problem] = {
    label: make_problem(CONV_TRANSPOSE, {**sizes, **words, "n": 2})
    for label, words, sizes in (
        (
            *("up", {"epilogue": "bias_relu"}),
            {"c": 6, "h": 5, "w": 7, "k": 9, "r": 4, "s": 4, "stride_h": 2, "stride_w": 2, "padding_h": 1}
            | {"padding_w": 1, "groups": 3},
        ),
        (
            *("volume", {"layout": "nhwc", "dtype": "f16", "epilogue": "bias"}),
            {"c": 16, "d": 4, "h": 6, "w": 5, "k": 24, "t": 3, "r": 3, "s": 5, "padding_h": 1, "padding_w": 2},
        ),
        (
            *("gaps", {"layout": "nhwc"}),
            {"c": 8, "d": 3, "h": 4, "w": 5, "k": 5, "t": 3, "r": 2, "s": 3, "stride_d": 2, "stride_h": 3}
            | {"stride_w": 2, "dilation_w": 2, "output_padding_d": 1, "output_padding_w": 1, "padding_d": 1},
        ),
        (
            *("upsampling", {"layout": "nhwc", "dtype": "f16", "epilogue": "bias_add_relu"}),
            {"c": 40, "h": 5, "w": 6, "k": 24, "r": 3, "s": 4, "stride_h": 2, "stride_w": 2, "padding_h": 1}
            | {"padding_w": 1, "output_padding_h": 1},
        ),
        (*("floats", {"layout": "nhwc", "epilogue": "bias_add"}), {"c": 36, "w": 50, "k": 64, "s": 3, "dilation_w": 3}),
        (
            *("depthwise", {"layout": "nhwc", "dtype": "bf16", "epilogue": "bias_relu"}),
            {"c": 16, "h": 9, "w": 12, "k": 16, "r": 3, "s": 4, "padding_h": 1, "padding_w": 2, "groups": 16},
        ),
        (
            *("depthwise up", {"layout": "nhwc", "dtype": "f16", "epilogue": "bias_add_relu"}),
            {
                "c": 12,
                "d": 2,
                "h": 6,
                "w": 5,
                "k": 12,
                "t": 2,
                "r": 3,
                "s": 4,
                "stride_h": 2,
                "stride_w": 3,
                "groups": 12,
            }
            | {"padding_h": 1, "padding_w": 2, "output_padding_h": 1, "dilation_w": 2},
        ),
    )
}
"""Problems of `conv_transpose` with overlaps and with gaps between the taps of neighbouring inputs."""
FILTER_GRADIENTS: Mapping[str, Problem] = {
    label: make_problem(FILTER_GRADIENT, {**sizes, "dtype": dtype, "n": 3})
    for label, dtype, sizes in (
        (
            *("same", "f16"),
            {"c": 72, "h": 9, "w": 8, "k": 80, "r": 3, "s": 3, "pad_h": 1, "pad_w": 1, "pad_h_end": 1, "pad_w_end": 1},
        ),
        (
            *("stem", "bf16"),
            {"c": 3, "h": 13, "w": 11, "k": 5, "r": 5, "s": 3, "stride_h": 2, "stride_w": 2, "pad_h": 2, "pad_w": 1},
        ),
        ("pointwise", "bf16", {"c": 72, "h": 7, "w": 5, "k": 136, "s": 1}),
        ("depthwise", "f32", {"c": 7, "h": 9, "w": 8, "k": 7, "r": 3, "s": 3, "groups": 7}),
        (
            *("groups", "f16"),
            {"c": 24, "d": 4, "h": 6, "w": 5, "k": 36, "t": 3, "r": 2, "s": 1, "groups": 3, "pad_d": 2, "stride_d": 2},
        ),
        ("signal", "f32", {"c": 12, "w": 75, "k": 40, "s": 4, "dilation_w": 3, "pad_w": 5}),
        (
            *("first", "bf16"),
            {"c": 3, "h": 9, "w": 16, "k": 72, "r": 5, "s": 7, "stride_h": 2, "stride_w": 2, "pad_h": 2, "pad_w": 3}
            | {"pad_h_end": 2, "pad_w_end": 3},
        ),
    )
}
"""Problems of `conv_filter_gradient` with one to three dimensions."""
PROBLEMS: Mapping[str, Problem] = {
    **AWKWARD,
    **{f"conv {label}": problem for label, problem in CONV_PROBLEMS.items()},
    **{f"conv_transpose {label}": problem for label, problem in TRANSPOSED_PROBLEMS.items()},
    **{f"conv_filter_gradient {label}": problem for label, problem in FILTER_GRADIENTS.items()},
    **{
        f"softmax {rows}x{columns} {dtype}": make_problem(SOFTMAX, {"rows": rows, "columns": columns, "dtype": dtype})
        for rows, columns, dtype in ((3, 100, "f32"), (2, 33, "bf16"), (5, 4096, "f16"), (1, 1, "f32"))
    },
    **{
        f"norm {n}x{pixels}x{c}/{groups} {dtype} {kind} {epilogue}": make_problem(
            NORM,
            {"n": n, "pixels": pixels, "c": c, "groups": groups, "dtype": dtype, "kind": kind, "epilogue": epilogue},
        )
        for n, pixels, c, groups, dtype, kind, epilogue in (
            (5, 1, 600, 1, "f32", "standard", "weight_bias"),
            (7, 1, 96, 1, "bf16", "rms", "weight_silu"),
            (3, 1, 33, 1, "f16", "standard", "none"),
            (2, 150, 60, 12, "f32", "standard", "weight_bias_silu"),
            (2, 35, 64, 64, "f16", "standard", "weight_bias_gelu"),
            (1, 64, 320, 32, "bf16", "rms", "weight"),
        )
    },
    **{
        f"norm_apply {n}x{pixels}x{c}/{groups} {dtype} {kind} {epilogue}": make_problem(
            NORM_APPLY,
            {"n": n, "pixels": pixels, "c": c, "groups": groups, "dtype": dtype, "kind": kind, "epilogue": epilogue},
        )
        for n, pixels, c, groups, dtype, kind, epilogue in (
            (2, 150, 60, 12, "f32", "standard", "weight_bias_silu"),
            (3, 35, 64, 64, "f16", "standard", "none"),
            (1, 64, 320, 32, "bf16", "rms", "weight"),
        )
    },
    **{f"conv_statistics {label}": problem for label, problem in STATISTICS_PROBLEMS.items()},
    **{
        f"concat {n}x{'+'.join(map(str, channels))} {dtype} {epilogue}": make_problem(
            CONCAT,
            {"n": n, "dtype": dtype, "epilogue": epilogue, **{f"c{i}": size for i, size in enumerate(channels)}},
        )
        for n, channels, dtype, epilogue in (
            (35, (64, 32, 32), "f16", "weight_bias_relu"),
            (9, (4, 20, 4, 12), "f32", "none"),
            (130, (7,), "bf16", "weight_bias_silu"),
            (3, (16, 8, 24, 8, 40, 8, 8, 600), "f16", "weight_bias"),
        )
    },
    **{
        f"{of.name} {n}x{pixels}x{c} {dtype}": make_problem(of, {"n": n, "pixels": pixels, "c": c, "dtype": dtype})
        for of in (PIXEL_MEAN, GATE)
        for n, pixels, c, dtype in ((3, 35, 96, "f16"), (2, 150, 20, "f32"), (9, 1, 7, "bf16"))
    },
    **{
        f"stencil {n}x{h}x{w}": make_problem(STENCIL, {"n": n, "h": h, "w": w})
        for n, h, w in ((3, 33, 131), (2, 9, 40), (1, 1, 1))
    },
    **{
        f"{of.name} {c}x{h}x{w} {r}x{s} {dtype} {layout}": make_problem(
            of,
            {"n": 2, "c": c, "h": h, "w": w, "r": r, "s": s, "stride_h": 2, "stride_w": 2, "pad_h": r // 2}
            | {"dtype": dtype, "layout": layout},
        )
        for c, h, w, r, s, dtype, layout in (
            (5, 13, 24, 3, 3, "f32", "nchw"),
            (24, 9, 11, 3, 2, "f16", "nhwc"),
            (3, 17, 15, 2, 5, "bf16", "nchw"),
        )
        for of in (MAX_POOL2D, AVG_POOL2D)
    },
    **{
        f"gemm {transposes} {batch}x{m}x{n}x{k} {dtype} {epilogue}": make_problem(
            GEMM,
            {"batch": batch, "m": m, "n": n, "k": k, "transposes": transposes, "dtype": dtype, "epilogue": epilogue},
        )
        for transposes, batch, m, n, k, dtype, epilogue in (
            ("nn", 2, 40, 72, 136, "f16", "bias_relu"),
            ("nt", 3, 8, 200, 520, "bf16", "none"),
            ("tn", 1, 72, 24, 200, "f16", "none"),
            ("nt", 2, 37, 19, 53, "f16", "bias"),
            ("tn", 2, 33, 17, 9, "f32", "bias"),
        )
    },
}
"""Difficult problems of every bundled operation."""
"""Problems with many features whose sizes no tile divides; golden files and regression tests use their names."""

_ODD: tuple[Mapping[str, int | str], ...] = (
    {},
    {},
    {},
    {"stride_h": 2},
    {"pad_h": 1},
    {"dilation_w": 2},
    {"groups": 2},
    {"epilogue": "bias_relu"},
    {"dtype": "f16"},
    {"dtype": "bf16"},
    {"layout": "nhwc"},
    {"layout": "nhwc", "dtype": "f16"},
    {"layout": "nhwc", "dtype": "bf16"},
    {"c": 12, "k": 24, "groups": 12, "pad_w": 1},
    {"c": 12, "k": 12, "groups": 12, "layout": "nhwc"},
    {"c": 32, "k": 32, "groups": 8, "layout": "nhwc", "dtype": "f16"},
)


def problems(count: int, seed: int = 0) -> Iterator[Conv2dProblem]:
    """Layers of the reports, some with a changed size or word that a family may reject."""
    rng = random.Random(seed)
    while count:
        size, taps = rng.choice([9, 14, 33, 40, 70]), rng.choice([1, 3, 5, 7])
        plain = Conv2dProblem(
            n=rng.choice([3, 100, 10000]),
            c=rng.choice([1, 2, 4, 12, 64]),
            h=size,
            w=size + rng.choice([0, 0, 3]),
            k=rng.choice([4, 6, 12, 16, 24, 64]),
            r=taps,
            s=taps,
        )
        odd = rng.choice(_ODD)
        try:
            yield dataclasses.replace(plain, **odd)  # type: ignore[arg-type]  # a field and its value
        except StudyError:  # groups that do not divide, a filter larger than the input
            continue
        count -= 1

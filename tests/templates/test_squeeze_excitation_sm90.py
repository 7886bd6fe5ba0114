"""What squeeze_excitation_sm90 can get wrong: parts of sums, the cluster's blocks, the last channels and pixels."""

from __future__ import annotations

import pytest

from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.operation.registry import operation
from autotune.problem import Problem, make_problem
from tests.long_run import every

from .shipped_families import refuses_changed, verify

Values = dict[str, int | str]
VALUES: Values = {"block": 512, "image_blocks": 3, "vector": 4}


def excitation(pixels: int, c: int, squeezed: int, dtype: str = "f32") -> Problem:
    sizes: Values = {"n": 3, "pixels": pixels, "c": c, "squeezed": squeezed, "dtype": dtype}
    return make_problem(operation("squeeze_excitation"), sizes)


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("problem", "values"),
    [
        (excitation(197, 120, 84, "f16"), {**VALUES, "vector": 8, "image_blocks": 4}),
        (excitation(70, 3, 1), {**VALUES, "vector": 1, "image_blocks": 1}),
    ],
)
def test_config_is_right(problem: Problem, values: Values, checked: DeviceEvaluator) -> None:
    verify("squeeze_excitation_sm90", problem, values, checked)


FAULTS = {
    "a part of a channel's pixels is left out": ("part < PARTS", "part < PARTS - 1"),
    "the last pixel is left out of the mean": ("BLOCK_PIXELS >= PIXELS) break;", "BLOCK_PIXELS >= PIXELS - 1) break;"),
    "a block of the cluster is left out": ("block < IMAGE_BLOCKS", "block < IMAGE_BLOCKS - 1"),
    "the products of the block's own channels alone": ("+ i, block)", "+ i, rank)"),
    "the last block multiplies beyond its channels": ("C - first_channel < CHANNELS ?", "C - first_channel < 0 ?"),
    "a row of weights is left out": ("if (row < rows)", "if (row < rows - 1)"),
    "the first layer has no bias": ("+ first_bias[row]", ""),
    "the bias is another channel's": ("b2[first_channel + i]", "b2[i]"),
    "others' products are read too early": ("cluster_sync();\n#pragma unroll 1", "__syncthreads();\n#pragma unroll 1"),
    "the second layer's rows are another block's": ("first_chunk * SQUEEZED + i", "i"),
    "weights are read too early": ("copy_async_wait<0>();", ""),
    "a factor is another channel's": ("factors[own * VECTOR + j] +", "factors[own * VECTOR] +"),
}


@pytest.mark.cxx
@pytest.mark.parametrize("what", every(3, FAULTS))
def test_a_mistake_is_found_without_a_gpu(what: str, host: DeviceEvaluator) -> None:
    problem = excitation(301, 20, 7)
    assert refuses_changed("squeeze_excitation_sm90", problem, VALUES, FAULTS[what], host)

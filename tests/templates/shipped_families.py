"""The families that the tests of this folder run on: all files in the shipped folder of templates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import numpy as np

from autotune.compilation.compile import Program, Target
from autotune.compilation.toolchain import find_cxx
from autotune.devices.backends import compile_program
from autotune.devices.device import Device, DeviceInfo
from autotune.devices.host_compile import check_environment
from autotune.errors import Rejected
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.space import Admission, BoundTemplate, SearchSpace
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_template, template_files
from autotune.measurement.launcher import LoadedKernel, Tensors
from autotune.problem import Conv2dProblem, Problem
from autotune.trial import Config, Outcome
from tests.compiled import host_device
from tests.problems import PROBLEMS

FILES = template_files()
FAMILIES = tuple(FILES)
H200 = DeviceInfo("cuda", "H200", arch=90, sm_count=132, memory_bytes=150_000_000_000)
TURING = DeviceInfo(
    *("cuda", "T4", 75, 40, 15_000_000_000),
    smem_per_block_bytes=65536,
    smem_per_sm_bytes=65536,
    max_warps_per_sm=32,
    max_blocks_per_sm=16,
)
"""The smallest of the devices that a family may run on, and a large one."""


@cache
def family(name: str) -> KernelTemplate:
    """A shipped family."""
    return load_template(FILES[name])


@cache
def supported(name: str, device: DeviceInfo = H200) -> Mapping[str, Problem]:
    """The awkward problems that a family supports on a device."""
    return {
        label: problem for label, problem in PROBLEMS.items() if BoundTemplate(family(name), problem, device).supported
    }


@cache
def default_of(name: str, problem: Problem, device: DeviceInfo = H200) -> Config | None:
    """The `default` of a search's space, without enumerating the space; None if the space is empty."""
    space = SearchSpace(
        BoundTemplate(family(name), problem, device, Admission(prune=True)), most_rows=0, sampled_rows=1
    )
    return space.default


def verify(name: str, problem: Problem, values: Mapping[str, int | str], evaluator: DeviceEvaluator) -> None:
    """Verify one config of a family; raises Rejected if it is wrong."""
    source = render(BoundTemplate(family(name), problem, evaluator.info), Config.of(name, values))
    evaluator.begin_layer(problem)
    evaluator.verify(source, evaluator.compile(source).result())


def refuses_changed(
    name: str,
    problem: Problem,
    values: Mapping[str, int | str],
    change: tuple[str, str],
    evaluator: DeviceEvaluator,
) -> bool:
    """Whether a device rejects a kernel after a replacement in its text; the replaced text must be there."""
    source = render(BoundTemplate(family(name), problem, evaluator.info), Config.of(name, values))
    assert change[0] in source.program.text, change[0]
    program = Program(source.program.text.replace(*change), source.program.entries)
    broken = replace(source, program=program)
    evaluator.begin_layer(problem)
    try:
        evaluator.verify(broken, evaluator.compile(broken).result())
    except Rejected as rejected:
        return rejected.outcome != Outcome.COMPILE  # otherwise the edit had no effect
    return False


def images_with_infinities(name: str, problem: Conv2dProblem, values: Mapping[str, int | str]) -> set[int]:
    """The images whose outputs are not all finite if image 1 has infinities; without a bias, on the host."""
    return parts_with_infinities(name, problem, values, problem.n)


def parts_with_infinities(name: str, problem: Conv2dProblem, values: Mapping[str, int | str], parts: int) -> set[int]:
    """The same for parts of x and y, such as images or planes; there are equally many of both."""
    device = host_device(str(find_cxx()))
    source = render(BoundTemplate(family(name), problem, device.info), Config.of(name, values))
    words = np.float32 if problem.dtype == "f32" else np.float16
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(problem.array(array).elements).astype(words) for array in ("x", "w"))
    x.reshape(parts, -1)[1] = np.inf
    outputs = np.frombuffer(output_bytes(device, source, {"x": x.tobytes(), "w": w.tobytes()}), words).reshape(
        parts, -1
    )
    device.close()
    return {part for part in range(parts) if not np.isfinite(outputs[part]).all()}


def output_bytes(device: Device, source: KernelSource, inputs: Mapping[str, bytes]) -> bytes:
    """The outputs of a kernel for these arrays."""
    problem = source.problem
    binary = compile_program(source.program, Target(device.info.kind, device.info.arch))
    kernel = LoadedKernel(device, device.load(binary), source)
    addresses = {array.name: device.allocate(array.size_bytes) for array in problem.arrays}
    for name, content in inputs.items():
        device.write(addresses[name], content)
    tensors = Tensors(addresses, device.allocate(source.packed_w_bytes), device.allocate(source.workspace_bytes))
    kernel.prepare(tensors)
    kernel.run(kernel.forward(tensors))
    return device.read(addresses[problem.output.name], problem.output.size_bytes)


def rounds_to_nearest_tf32(device: Device, config: Config) -> None:
    """Assert that a config rounds f32 operands to the nearest TF32, ties to even, for x and for w."""
    problem = Conv2dProblem(1, 64, 8, 8, 64, 1, 1, layout="nhwc")
    source = render(BoundTemplate(family(config.template), problem, device.info), config)
    bits = np.random.default_rng(0).integers(0x30000000, 0x4F000000, (64, 64), np.uint32)
    bits[:8] = bits[:8] & 0xFFFFE000 | 0x1000  # ties
    bits[8:12] |= 0x7FF000  # up to the next power of two
    bits[::2] |= 0x80000000
    nearest = (bits + 0xFFF + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)
    values, identity = bits.view(np.float32), np.eye(64, dtype=np.float32)
    for x, w, expected in ((values, identity, nearest), (identity, values, nearest.T)):
        y = np.frombuffer(output_bytes(device, source, {"x": x.tobytes(), "w": w.tobytes()}), np.uint32)
        np.testing.assert_array_equal(y.reshape(64, 64), expected)


def stays_inside(name: str, problem: Conv2dProblem, values: Mapping[str, int | str]) -> None:
    """Run one config, in check mode, on arrays between bytes that it must not touch."""
    command = [
        sys.executable,
        "-m",
        "tests.templates.bounded",
        name,
        json.dumps(asdict(problem)),
        json.dumps(values),
    ]
    environment = {**os.environ, **check_environment(str(find_cxx()))}
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr

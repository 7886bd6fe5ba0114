"""The families that the tests of this folder run over: whatever lies in the shipped folder of templates."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from autotune.devices.device import DeviceInfo
from autotune.evaluation.check import AWKWARD
from autotune.evaluation.evaluate import DeviceEvaluator
from autotune.family.render import render
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template import KernelTemplate, load_template, template_files
from autotune.problem import Conv2dProblem
from autotune.shipped import shipped
from autotune.trial import Config

FAMILIES = tuple(template_files())
FILES = {name: shipped("templates") / f"{name}.cu.j2" for name in FAMILIES}
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
def supported(name: str, device: DeviceInfo = H200) -> Mapping[str, Conv2dProblem]:
    """The awkward problems that a family supports on a device."""
    return {
        label: problem for label, problem in AWKWARD.items() if BoundTemplate(family(name), problem, device).supported
    }


@cache
def default_of(name: str, problem: Conv2dProblem, device: DeviceInfo = H200) -> Config | None:
    """What a space's `default` would be, without enumerating the space; None when it is empty."""
    space = SearchSpace(BoundTemplate(family(name), problem, device), most_rows=0, sampled_rows=1)
    return space.default


def verify(name: str, problem: Conv2dProblem, values: Mapping[str, int | str], evaluator: DeviceEvaluator) -> None:
    """Verify one config of a family; raises Rejected when it is wrong."""
    source = render(BoundTemplate(family(name), problem, evaluator.info), Config.of(name, values))
    evaluator.begin_layer(problem)
    evaluator.verify(source, evaluator.compile(source).result())

"""The result of rendering: `KernelSource`, a program with its launches evaluated for one problem."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, fields

from autotune.compilation.compile import Program
from autotune.devices.tensor_map import TensorMap
from autotune.family.tensor_map_template import NamedTensorMap
from autotune.operation.registry import CONV2D
from autotune.problem import Problem
from autotune.trial import Config


@dataclass(frozen=True, slots=True)
class Stage:
    """One kernel of the forward pass, with its launch geometry evaluated for the problem's run-time sizes."""

    entry: str
    args: tuple[str, ...]
    """names of arrays, run-time sizes, packed_w, workspace, i and tensor maps"""
    block: tuple[int, int, int]
    grid: tuple[int, int, int]
    smem_bytes: int
    """dynamic shared memory per block, bytes"""


@dataclass(frozen=True, slots=True)
class ConstantSymbol:
    """A __constant__ array filled by a device-to-device copy before the first launch."""

    name: str
    origin: str
    """the argument that the array is copied from: weights or packed_w"""


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A rendered kernel: the program, its launches and what it guarantees."""

    problem: Problem
    config: Config
    program: Program
    prepare: tuple[Stage, ...]
    """launches that run once per set of weights and write packed_w"""
    stages: tuple[Stage, ...]
    """launches that run in order, `loop_count` times with i = 0, 1, ..."""
    loop_count: int
    constants: tuple[ConstantSymbol, ...]
    packed_w_bytes: int
    workspace_bytes: int
    accuracy: str
    deterministic: bool
    error_factor: int = 1
    """factor on the error bound of the accuracy class"""
    flops: int | None = None
    """floating-point operations of the kernel's algorithm; None for the direct algorithm"""
    tensor_maps: tuple[NamedTensorMap, ...] = ()
    """the tensor maps, to be encoded for the arrays of a pass"""

    @property
    def overlaps(self) -> bool:
        """Whether a stage may start before the stage before it has ended (see `_ptx_dependent_stage.cuh`)."""
        return "launch_next_stage();" in self.program.text

    hash: str = field(init=False, compare=False, repr=False)
    """identity: SHA-256 of the text, comments included, and of all else that affects the run, but not the family"""

    def __post_init__(self) -> None:
        launches: dict[str, object] = {
            "prepare": [fields_of(stage) for stage in self.prepare],
            "stages": [fields_of(stage) for stage in self.stages],
            "loop": self.loop_count,
            "constants": [fields_of(symbol) for symbol in self.constants],
            "bytes": [self.packed_w_bytes, self.workspace_bytes],
            "accuracy": [self.accuracy, self.deterministic],
            "problem": dict(self.problem.values),
        }
        if self.problem.operation.name != CONV2D:
            launches["operation"] = self.problem.operation.name
        if self.error_factor != 1:
            launches["error_factor"] = self.error_factor
        if self.tensor_maps:
            launches["tensor_maps"] = [fields_of(each) for each in self.tensor_maps]
        text = self.program.hash + json.dumps(launches, sort_keys=True)
        # computed once, because every step of a trial uses it
        object.__setattr__(self, "hash", hashlib.sha256(text.encode()).hexdigest())


def fields_of(record: Stage | ConstantSymbol | NamedTensorMap | TensorMap) -> dict[str, object]:
    """Return a record's fields for JSON. (`dataclasses.asdict` would make deep copies and take twice as long.)"""
    values = ((each.name, getattr(record, each.name)) for each in fields(record))
    return {name: fields_of(value) if isinstance(value, TensorMap) else value for name, value in values}

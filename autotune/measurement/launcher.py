"""compile -> load: bind a loaded kernel to tensors and launch the stages of a forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from autotune.devices.device import Device, Launch, Module
from autotune.devices.tensor_map import BoundTensorMap
from autotune.family.source import KernelSource, Stage
from autotune.operation.declarations import SCALAR
from autotune.operation.storage_types import TYPES

DEPENDENT_ARCH = 90
"""the first architecture with programmatic dependent launches"""


@dataclass(frozen=True, slots=True)
class Tensors:
    """The device addresses of a layer's arrays and of the kernel's own."""

    arrays: Mapping[str, int]
    """addresses of the problem's arrays, by name"""
    packed_w: int = 0
    workspace: int = 0

    def address(self, name: str) -> int:
        """Return the address of one of the layer's or kernel's arrays, or 0 if there is none with this name."""
        return {**self.arrays, "packed_w": self.packed_w, "workspace": self.workspace}.get(name, 0)


class LoadedKernel:
    """A kernel loaded on a device. The tensors' addresses are bound when it runs."""

    def __init__(self, device: Device, module: Module, source: KernelSource) -> None:
        self.device = device
        self.module = module
        self.source = source

    def prepare(self, tensors: Tensors) -> None:
        """Run the stages that depend only on the weights, then fill the constant symbols."""
        for stage in self.source.prepare:
            self.module.launch(self._launch(stage, tensors, 0))
        sizes = {array.name: array.size_bytes for array in self.source.problem.arrays}
        sizes["packed_w"] = self.source.packed_w_bytes
        for symbol in self.source.constants:
            address, size_bytes = self.module.symbol(symbol.name)
            filled_bytes = min(size_bytes, sizes.get(symbol.origin, 0))
            self.device.copy(address, tensors.address(symbol.origin), filled_bytes)

    def forward(self, tensors: Tensors) -> tuple[Launch, ...]:
        """Return the launches of a forward pass in order, prepared so that the host's part of the work isn't timed."""
        overlaps = self.source.overlaps and self.device.info.arch >= DEPENDENT_ARCH
        launches = tuple(
            self._launch(stage, tensors, i, early=overlaps and at > 0)
            for i in range(self.source.loop_count)
            for at, stage in enumerate(self.source.stages)
        )
        for launch in launches:
            self.module.ready(launch)
        return launches

    def run(self, launches: tuple[Launch, ...], *, stream: int = 0) -> None:
        """Enqueue a forward pass."""
        for launch in launches:
            self.module.launch(launch, stream=stream)

    def _launch(self, stage: Stage, tensors: Tensors, i: int, *, early: bool = False) -> Launch:
        problem = self.source.problem
        sizes = {**dict(zip(problem.operation.runtime, problem.runtime_sizes, strict=True)), "i": i}
        scalars = {array.name: array for array in problem.arrays if array.role == SCALAR}
        maps = {each.name: BoundTensorMap(each.tensor, tensors.address(each.array)) for each in self.source.tensor_maps}

        def value(argument: str) -> np.generic | BoundTensorMap:
            if argument in sizes:
                return np.int32(sizes[argument])
            if argument in scalars:
                array = scalars[argument]
                stored = self.device.read(tensors.address(argument), array.size_bytes)
                number: np.generic = np.frombuffer(stored, TYPES[array.dtype].numpy)[0]
                return number
            return maps[argument] if argument in maps else np.uint64(tensors.address(argument))

        return Launch(stage.entry, stage.grid, stage.block, stage.smem_bytes, tuple(map(value, stage.args)), early)

"""compile -> load: one loaded kernel on one set of tensors, as the launches of a forward pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotune.devices.device import Device, Launch, Module
from autotune.devices.tensor_map import BoundTensorMap
from autotune.family.source import KernelSource, Stage


@dataclass(frozen=True, slots=True)
class Tensors:
    """Device addresses of a layer's arrays; 0 where a kernel has none."""

    x: int
    w: int
    bias: int
    y: int
    packed_w: int = 0
    workspace: int = 0


class LoadedKernel:
    """A kernel that is loaded and bound to its tensors' addresses when run."""

    def __init__(self, device: Device, module: Module, source: KernelSource, *, weight_bytes: int) -> None:
        self.device = device
        self.module = module
        self.source = source
        self.weight_bytes = weight_bytes

    def prepare(self, tensors: Tensors) -> None:
        """Run the stages that depend on the weights only, then fill the constant symbols."""
        for stage in self.source.prepare:
            self.module.launch(self._launch(stage, tensors, 0))
        for symbol in self.source.constants:
            address, size_bytes = self.module.symbol(symbol.name)
            available = {"w": self.weight_bytes, "packed_w": self.source.packed_w_bytes}
            self.device.copy(
                address, getattr(tensors, symbol.origin), min(size_bytes, available.get(symbol.origin, size_bytes))
            )

    def forward(self, tensors: Tensors) -> tuple[Launch, ...]:
        """Every launch of one forward pass, in order, with what the host does once for each done."""
        launches = tuple(
            self._launch(stage, tensors, i) for i in range(self.source.loop_count) for stage in self.source.stages
        )
        for launch in launches:
            self.module.ready(launch)
        return launches

    def run(self, launches: tuple[Launch, ...], *, stream: int = 0) -> None:
        """Enqueue a forward pass."""
        for launch in launches:
            self.module.launch(launch, stream=stream)

    def _launch(self, stage: Stage, tensors: Tensors, i: int) -> Launch:
        scalars = {"n": self.source.problem.n, "i": i}
        maps = {
            each.name: BoundTensorMap(each.tensor, getattr(tensors, each.array)) for each in self.source.tensor_maps
        }

        def value(argument: str) -> np.generic | BoundTensorMap:
            if argument in scalars:
                return np.int32(scalars[argument])
            return maps[argument] if argument in maps else np.uint64(getattr(tensors, argument))

        return Launch(stage.entry, stage.grid, stage.block, stage.smem_bytes, tuple(map(value, stage.args)))

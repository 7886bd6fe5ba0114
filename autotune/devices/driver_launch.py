"""Launch kernels through the driver API, because PyCUDA can't pass tensor maps or launch kernels early.

PyCUDA owns the context and the streams. `cuda-bindings` can't replace `autotune_runtime.driver`, because it doesn't
align the tensor maps that it encodes (docs/architecture.md).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autotune.autotune_runtime.driver import (
    MAP_BYTES,
    EncodedMap,
    LaunchConfig,
    Module,
    aligned_memory,
    call,
    launch_config,
)
from autotune.devices.device import Launch
from autotune.devices.tensor_map import BoundTensorMap


class DriverModule:
    """A cubin loaded into the current context, for kernels that PyCUDA can't launch."""

    def __init__(self, image: bytes) -> None:
        self._module = Module(image)
        self._launches: dict[Launch, _Prepared] = {}

    def ready(self, launch: Launch) -> None:
        """Find the function and encode the tensor maps, which takes much longer than a launch."""
        self._prepared(launch)

    def launch(self, launch: Launch, stream: int) -> None:
        """Enqueue a kernel on the stream with the address `stream`."""
        prepared = self._prepared(launch)
        prepared.config.stream = stream
        call("cuLaunchKernelEx", ctypes.byref(prepared.config), prepared.function, prepared.parameters, None)

    def unload(self) -> None:
        """Unload the module."""
        self._module.unload()

    def _prepared(self, launch: Launch) -> _Prepared:
        prepared = self._launches.get(launch)
        if prepared is None:
            held = tuple(_content(argument) for argument in launch.args)
            parameters = (ctypes.c_void_p * len(held))(*(content.address for content in held))
            config = launch_config((*launch.grid, *launch.block, launch.smem_bytes), early=launch.early)
            function = self._module.function(launch.entry, launch.smem_bytes)
            prepared = self._launches[launch] = _Prepared(function, config, parameters, held)
        return prepared


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The arguments of cuLaunchKernelEx."""

    function: ctypes.c_void_p
    config: LaunchConfig
    parameters: ctypes.Array[ctypes.c_void_p]
    held: tuple[ParameterBytes, ...]
    """memory that the parameters point to"""


def _content(argument: np.generic | BoundTensorMap) -> ParameterBytes:
    if isinstance(argument, BoundTensorMap):
        return driver_encoded(argument)
    array = np.array(argument)
    return ParameterBytes(array.ctypes.data, array)


_KEPT_MAPS = 256


@dataclass(frozen=True, slots=True)
class ParameterBytes:
    """A parameter's bytes in host memory."""

    address: int
    holder: object
    """keeps the buffer alive"""


@lru_cache(maxsize=_KEPT_MAPS)
def driver_encoded(bound: BoundTensorMap) -> ParameterBytes:
    """Encode a tensor map. Because encoding takes longer than a launch, the result is cached."""
    memory, begin = aligned_memory(MAP_BYTES)
    address = ctypes.addressof(memory) + begin
    EncodedMap(bound.tensor, address).point_to(bound.address)
    return ParameterBytes(address, memory)

"""Launch a kernel by its plan. A call fills in the arrays' addresses; everything else is prepared beforehand."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from threading import Lock

from . import driver
from .driver import MAP_BYTES, EncodedMap, Module, aligned_memory
from .interface import Enqueue, InterfaceArray, Number
from .planned_launches import Launches

_PACKED_ALIGNMENT = 256  # bytes; of packed weights in a workspace


def packed_offset(launches: Launches) -> int:
    """Return the offset of packed weights in the workspace of a pass that packs them."""
    return -(-launches.workspace_bytes // _PACKED_ALIGNMENT) * _PACKED_ALIGNMENT


def pass_bytes(launches: Launches) -> int:
    """Return the size of the workspace of a pass that packs the weights."""
    packed_bytes = launches.packed_w_bytes
    return packed_offset(launches) + packed_bytes if packed_bytes else launches.workspace_bytes


def enqueuer(
    module: Module,
    kernels: Sequence[str],
    launches: Launches,
    arrays: Sequence[InterfaceArray],
    sizes: Mapping[str, int],
    fixed: Mapping[str, int],
) -> Enqueue:
    """Return a function that launches a pass's stages. The module belongs to the current context.

    `kernels` are the program's entries, `sizes` the run-time sizes by name, and `fixed` the addresses of arrays that
    all calls share. If `packed_w` is not among these, it follows the workspace.
    """
    formats = f"{''.join(array.format for array in arrays)}QQ"
    names = (*(array.name for array in arrays), "workspace", "packed_w")
    moving_at = MAP_BYTES * len(launches.tensor_maps)
    fixed_at = moving_at + struct.calcsize(f"{formats}0Q")
    memory, base = aligned_memory(fixed_at + 8 * (len(fixed) + len(sizes) + 1))
    places = {name: moving_at + struct.calcsize(f"{formats[:at]}0{formats[at]}") for at, name in enumerate(names)}
    for at, (name, value) in enumerate((*fixed.items(), *sizes.items(), ("i", 0))):
        places[name] = fixed_at + 8 * at
        struct.pack_into("Q", memory, base + places[name], value)  # a size is a number of 32 bits
    index = ctypes.c_int32.from_buffer(memory, base + places["i"])
    begin, moving = ctypes.addressof(memory) + base, []
    for at, (array, tensor) in enumerate(launches.tensor_maps):
        places[f"map{at}"] = MAP_BYTES * at
        encoded = EncodedMap(tensor, begin + MAP_BYTES * at)
        if array in fixed:
            encoded.point_to(fixed[array])
        else:
            moving.append((names.index(array), encoded))
    prepared = []
    for stage in launches.stages:
        config = driver.launch_config(stage.sizes, early=stage.early)
        function = module.function(kernels[stage.entry], stage.sizes[-1])
        parameters = (ctypes.c_void_p * len(stage.args))(*(begin + places[name] for name in stage.args))
        prepared.append((config, (ctypes.byref(config), function, parameters, None)))
    packed_at, values_at = packed_offset(launches), base + moving_at
    times, context = range(launches.loop_count), driver.current_context()
    lock, launch, pack_into = Lock(), driver.function("cuLaunchKernelEx"), struct.Struct(formats).pack_into

    def enqueue(stream: int, workspace: int, addresses: Sequence[Number]) -> None:
        given = (*addresses, workspace, workspace + packed_at)
        with lock:
            pack_into(memory, values_at, *given)
            for place, encoded in moving:
                if given[place] != encoded.array:
                    encoded.point_to(int(given[place]))
            for i in times:
                index.value = i
                for config, arguments in prepared:
                    config.stream = stream
                    if launch(*arguments):  # another device's context may be the current one
                        with driver.current(context):
                            driver.call("cuLaunchKernelEx", *arguments)

    return enqueue

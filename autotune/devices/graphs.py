"""CUDA graphs: record forward passes once and replay them with a single call, without launch gaps.

PyCUDA supports neither stream capture nor graphs, so `record` captures kernels through the driver API (`driver_api`),
in PyCUDA's context and on a PyCUDA stream. `torch_graph` captures PyTorch's work in the same context with
`torch.cuda.CUDAGraph`, because PyTorch's allocator has to know about the capture.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from autotune.autotune_runtime.driver import DriverError, call

if TYPE_CHECKING:
    import torch

_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads do not disturb the capture


class DriverGraph:
    """A recorded graph, ready to be launched."""

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle

    def launch(self) -> None:
        """Enqueue the graph on the default stream. Raises DriverError."""
        call("cuGraphLaunch", self._handle, ctypes.c_void_p(0))

    def close(self) -> None:
        """Destroy the graph. If a kernel broke the context, this fails silently, and the context destroys it."""
        with suppress(DriverError):
            call("cuGraphExecDestroy", self._handle)


def record(stream: int, enqueue: Callable[[], None]) -> DriverGraph:
    """Record the work that `enqueue` adds to the stream with the address `stream`.

    Nothing else may use this stream in the meantime. Raises DriverError and whatever `enqueue` raises.
    """
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), ctypes.c_int(_THREAD_LOCAL))
    try:
        enqueue()
    except BaseException:
        with suppress(DriverError):
            call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
            call("cuGraphDestroy", graph)
        raise
    call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
    try:
        call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
    finally:
        call("cuGraphDestroy", graph)
    return DriverGraph(executable)


def torch_graph(enqueue: Callable[[], object], pool: tuple[int, int] | None) -> torch.cuda.CUDAGraph:
    """Record PyTorch's work as a graph. `replay` uses the current stream, which is the device's default stream by
    default.

    `pool` is memory that graphs can share if they never run at the same time (`torch.cuda.graph_pool_handle`). Raises
    RuntimeError.
    """
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        kept = enqueue()
    del kept  # results must live until the end of the recording, so that each pass has its own
    return graph

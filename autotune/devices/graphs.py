"""CUDA graphs: forward passes that are recorded once and replayed by one call, with no launch gaps between them.

PyCUDA compiles, loads and launches kernels, but has neither stream capture nor graphs. So this module calls the
driver's own functions through ctypes, in the context and on the streams that PyCUDA made (`DriverGraphs`). What PyTorch
runs is recorded by `torch.cuda.CUDAGraph` in the same context (`torch_graph`): its allocator must know of the capture.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: what other threads do does not disturb the capture


class GraphError(Exception):
    """The driver refused to record or replay; the message is its own."""


class DriverGraph:
    """A recorded graph, ready to be launched."""

    def __init__(self, api: DriverGraphs, handle: ctypes.c_void_p) -> None:
        self._api, self._handle = api, handle

    def launch(self) -> None:
        """Enqueue it on the default stream. Raises GraphError."""
        self._api.call("cuGraphLaunch", self._handle, ctypes.c_void_p(0))

    def close(self) -> None:
        """Destroy it, once the device is done with it."""
        self._api.call("cuGraphExecDestroy", self._handle)


class DriverGraphs:
    """The driver's functions on graphs, in the calling thread's current context."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def record(self, stream: int, enqueue: Callable[[], None]) -> DriverGraph:
        """What `enqueue` puts on a stream (its address, not the default one), which nothing else may use meanwhile.

        Raises GraphError, and what `enqueue` raises.
        """
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), ctypes.c_int(_THREAD_LOCAL))
        try:
            enqueue()
        except BaseException:
            self._library.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph))
            if graph:
                self._library.cuGraphDestroy(graph)
            raise
        self.call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        try:
            self.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        finally:
            self.call("cuGraphDestroy", graph)
        return DriverGraph(self, executable)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver. Raises GraphError with the driver's words."""
        status = getattr(self._library, name)(*arguments)
        if status:
            words = ctypes.c_char_p()
            self._library.cuGetErrorString(ctypes.c_int(status), ctypes.byref(words))
            raise GraphError(f"{name} failed: {(words.value or b'').decode() or f'error {status}'}")


def torch_graph(enqueue: Callable[[], object], pool: tuple[int, int] | None) -> torch.cuda.CUDAGraph:
    """What PyTorch enqueues as a graph; its `replay` goes to the current stream, by default the device's default one.

    `pool`: memory that graphs share which never run at once (`torch.cuda.graph_pool_handle`). Raises RuntimeError.
    """
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        kept = enqueue()
    del kept  # results must live until all is recorded, so that each pass has its own
    return graph

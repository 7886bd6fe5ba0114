"""The interface through which the operator and the benchmark use a kind of device, implemented for CUDA devices."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, Self

import torch
from torch import nn

from .arrays import torch_stream

_FLUSH_L2_SIZES = 4  # times the L2 size, written before a sample; takes long enough to hide the next launch


class TrainingMode(RuntimeError):
    """A network is in training mode or gradients are required, but the kernels have no backward pass."""


class TunedModule(nn.Module):
    """A module that a library's kernels compute, or PyTorch's operators."""

    _call = ""
    """text of the operator's call; empty if PyTorch computes the module"""

    def leave_to_pytorch(self) -> None:
        """Compute with PyTorch's operators from now on."""
        self._call = ""

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002 - as nn.Module has it
        """Raise TrainingMode unless `mode` is False."""
        if mode:
            name = type(self).__name__
            raise TrainingMode(f"a {name} is for inference only: train the network that it was converted from")
        return super().train(mode)


class Runtime(Protocol):
    """The interface that each kind of device implements."""

    def name(self, device: torch.device) -> str:
        """Return the device's name in autotune's commands, such as cuda:0."""

    def model(self, device: torch.device) -> str:
        """Return the device's model, such as NVIDIA H200."""

    def current(self, device: torch.device) -> AbstractContextManager[object]:
        """Make a device the calling thread's current device inside the block."""

    def stream(self, device: torch.device) -> int:
        """Return the current stream's address, as the library expects it."""

    def synchronize(self, device: torch.device) -> None:
        """Wait for the work on the current stream."""

    def capturing(self) -> bool:
        """Whether the current stream is being captured into a graph."""

    def recorded(self, device: torch.device, run: Callable[[], object]) -> Callable[[], None]:
        """Record the work of `run` as a graph, and return a function that replays it.

        The results of `run` are kept until the recording has ended.
        """

    def time_ms(self, device: torch.device, run: Callable[[], None]) -> float:
        """Return the time of the work that `run` enqueues on the current stream, in milliseconds, with cold caches."""


class Cuda:
    """PyTorch's CUDA devices."""

    def name(self, device: torch.device) -> str:
        return f"cuda:{torch.cuda.current_device() if device.index is None else device.index}"

    def model(self, device: torch.device) -> str:
        return str(torch.cuda.get_device_name(device))

    def current(self, device: torch.device) -> AbstractContextManager[object]:
        return torch.cuda.device(device)

    def stream(self, device: torch.device) -> int:
        return torch_stream(device)

    def synchronize(self, device: torch.device) -> None:
        torch.cuda.current_stream(device).synchronize()

    def capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def recorded(self, device: torch.device, run: Callable[[], object]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device), torch.cuda.graph(graph):
            kept = run()
        torch._C._cuda_clearCublasWorkspaces()  # otherwise later graphs use a workspace in this graph's freed memory
        del kept
        return graph.replay

    def time_ms(self, device: torch.device, run: Callable[[], None]) -> float:
        with torch.cuda.device(device):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            size_bytes = _FLUSH_L2_SIZES * torch.cuda.get_device_properties(device).L2_cache_size
            torch.empty(size_bytes, dtype=torch.uint8, device=device).zero_()
            start.record()
            run()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end))

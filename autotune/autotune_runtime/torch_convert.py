"""Replace a PyTorch network's layers with tuned kernels where these are faster."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

from .torch_layers import read_network
from .torch_swap import MARGIN, Report, cudnn_benchmark, swap
from .torch_training import Training, read_training, train
from .torch_untuned import DB, UntunedNetwork, begun_build, expect, libraries_if_any, started_build, swap_untuned


def convert(
    module: nn.Module,
    example: object,
    *,
    library: str | Path | Sequence[str | Path] | None = None,
    margin: float = MARGIN,
    wait: bool = False,
    db: str | Path = DB,
    training: bool = False,
) -> tuple[nn.Module, Report]:
    """Return a copy of a network in which tuned kernels compute the layers that they are faster at, and a report.

    `example` is a tensor on the GPU, a tuple of arguments, or the sizes of one tensor. Kernels are chosen and timed for
    the example's shapes, with cudnn.benchmark on. To use kernels for images of several sizes, pass a list of examples:
    layers that run a kernel for the first one then get kernels for the others as well. Batch norms are folded into the
    convolutions before them, tuned or not. If the library has such kernels, a kernel also adds a tensor of the output's
    shape, as in the blocks of a ResNet, and computes an activation, provided that nothing else reads the values in
    between. The copy is a `torch.fx.GraphModule` or contains such modules. None of its parameters requires gradients.

    Each kernel is timed against the network's own operators, which stay if the kernel isn't faster. A kernel's time
    includes PyTorch's kernels for operators that it doesn't compute. If the kernel that computes the most operators
    doesn't win, one that computes fewer is tried. All contenders run from CUDA graphs with cold caches.

    `library` is one or several paths of libraries or exported folders, or None for the libraries in this package's
    folder. `margin` is the fraction by which a kernel must be faster.

    If there is no library, autotune chooses kernels without tuning: recorded kernels for this GPU, from the results
    database `db` or else from the bundled results, and kernels that the cost model predicts to be fastest. Another
    process compiles them on all cores and stores them in the user's cache folder. Until they are ready, the copy, an
    UntunedNetwork, runs the original network; with `wait`, this function waits for the kernels. A kernel must also
    agree with PyTorch's operator on the example. Sizes of images that occur repeatedly later get kernels in the same
    way.

    With `training`, you can train the copy. Kernels compute a convolution's output and its two gradients, each only
    where it is faster; PyTorch computes everything else. The copy has the same modules as the network and its own
    parameters, which you must pass to the optimizer. The example runs in the network's mode, under the caller's
    autocast, and this function waits for kernels.

    Raises TrainingMode for a network in training mode without `training`, LibraryError if a library fails, BuildFailed
    if autotune can't build a library, and FileNotFoundError if there is no library and autotune isn't installed.
    """
    with torch.inference_mode(mode=False):  # inference mode creates tensors whose changes PyTorch does not count
        libraries = libraries_if_any(library)
        started = started_build(module.parameters(), str(db)) if libraries is None else None
        try:
            with cudnn_benchmark():  # PyTorch keeps the algorithm of a shape's first run
                expected = None if started is None else partial(expect, started)
                network = read_training(module, example) if training else read_network(module, example, expected)
        except BaseException:
            if started is not None:
                started.cancel()
            raise
        if isinstance(network, Training):
            return train(network, libraries, started, margin)
        if libraries is not None:
            swapped = swap(network, libraries, margin)
            return swapped.network, swapped.report
        build = begun_build(started, network)
        if build is None or wait or build.done():
            return swap_untuned(network, build, margin)
        pending = UntunedNetwork(module, network, build, margin)
        return pending, pending.report

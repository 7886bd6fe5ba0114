"""Replace a PyTorch network's convolutions and norms by tuned kernels, if they are faster."""

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
    """A copy of a network in which tuned kernels compute the convolutions and norms that they are faster at, and a
    report.

    `example` is a tensor on the GPU, a tuple of arguments, or the sizes of one tensor: kernels are chosen and timed for
    its shapes, with cudnn.benchmark on. A list has several such examples, whose images may have other sizes: the layers
    that run a kernel for the first example run others for the other ones. Batch norms are folded into the convolutions
    before them, tuned or not. If the library has such kernels, a kernel also adds a tensor of the output's shape, as in
    a ResNet's blocks, and computes an activation, if nothing else reads the values in between. The copy is a
    `torch.fx.GraphModule`, or has such parts. No parameter of the copy requires gradients.

    A kernel is timed against the network's own operators, which run if it is not faster. PyTorch's kernels compute what
    the kernel does not. If the kernel that computes most does not win, one that computes less is tried. All run from
    CUDA graphs with cold caches.

    `library`: the path of a library or of an exported folder, or several; None: the libraries in the folder of this
    package. `margin`: fraction by which a kernel must be faster.

    If there is no library, autotune chooses kernels without tuning: recorded ones of this GPU, from the results
    database `db` or else the bundled results, and those that its cost model predicts to be fastest. All cores compile
    them in another process, and the user's cache folder keeps them. Until they are ready, the copy, an UntunedNetwork,
    runs the network as it is; with `wait`, this function waits. A kernel must also agree with PyTorch's operator on
    the example.

    With `training` the copy can be trained: kernels compute the convolutions and their two gradients, each where it is
    faster, and PyTorch everything else. The copy has the same modules, and parameters of its own, which an optimizer
    must be given. The example is run in the network's mode, under the caller's autocast, and kernels are waited for.

    Raises TrainingMode for a network in training mode unless `training`, LibraryError if a library fails, BuildFailed
    if autotune cannot build one, and FileNotFoundError if there is no library and autotune is not installed.
    """
    with torch.inference_mode(mode=False):  # which makes tensors whose changes are not counted
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

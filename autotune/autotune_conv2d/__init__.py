"""Tuned conv2d kernels from Python: the library that `autotune export` wrote, on arrays of PyCUDA, CuPy or PyTorch.

Nothing but the standard library is needed here; it is part of every exported folder and of autotune itself.

    from autotune_conv2d import Conv2d, Problem

    conv = Conv2d(Problem(n=64, c=16, h=32, w=32, k=32, r=3, s=3, epilogue="bias"), w, bias)
    y = conv(x)

For PyTorch there is more: `torch_operator` has the operator `autotune_conv2d::conv2d`, `torch_convert` puts it in the
place of a network's own convolutions.
"""

from .conv2d import Conv2d
from .interface import Kernel, Status
from .library import Conv2dError, Handle, Library, Problem, find_library

__all__ = ["Conv2d", "Conv2dError", "Handle", "Kernel", "Library", "Problem", "Status", "find_library"]

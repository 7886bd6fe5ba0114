"""Run beside a PyCUDA that has no GPU: the same cubin as nvcc alone, the compiler's words kept, a clear DeviceError."""

from pathlib import Path

import pycuda.driver  # noqa: F401 - must import

from autotune.compilation.compile import Program, compile_cubin
from autotune.compilation.toolchain import find_nvcc
from autotune.devices.backends import open_device
from autotune.devices.cuda.cuda_compile import compile_cuda
from autotune.errors import DeviceError, Rejected

TEXT = 'extern "C" __global__ void scale(float* x, float by) { x[blockIdx.x * 256 + threadIdx.x] *= by; }\n'
program = Program(TEXT, ("scale",))
ours, theirs = compile_cubin(program, 90, Path(find_nvcc())), compile_cuda(program, 90)
assert ours.image == theirs.image, "PyCUDA and nvcc alone compile different cubins"
assert ours.resources == theirs.resources != type(ours.resources)(), (ours.resources, theirs.resources)
words = ""
try:
    compile_cuda(Program(TEXT.replace("by;", "bye;"), ("scale",)), 90)
except Rejected as error:
    words = error.message
assert '"bye" is undefined' in words, words
words = ""
try:
    open_device("cuda:0")
except DeviceError as error:
    words = str(error)
assert words, "a device opened without a GPU"
print(f"PyCUDA works: {words}")

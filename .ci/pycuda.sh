#!/usr/bin/env bash
# Builds PyCUDA from the extra against a stand-in libcuda, and shows that it compiles what nvcc alone compiles.
# Usage: .ci/pycuda.sh CHECKOUT WORK, with uv on the path
set -euo pipefail
checkout=$1 work=$2/pycuda
mkdir -p "$work"
cd "$checkout"
uv venv -q --seed --python "$(command -v python3)" "$work/venv"
uv pip install -q --python "$work/venv" 'cuda-toolkit[nvcc,cudart,cccl,profiler]==13.0.*' .
"$work/venv/bin/autotune" doctor --build-pycuda --wheels "$work/wheels"
"$work/venv/bin/pip" install -q "$work"/wheels/pycuda-*.whl '.[cuda13]'
# A libcuda that exports what PyCUDA imports, and answers every call with CUDA_ERROR_NO_DEVICE (100).
{
    nm -D --undefined-only "$work"/venv/lib/python3*/site-packages/pycuda/_driver*.so |
        awk '$2 ~ /^cu[A-Z]/ && $2 !~ /^cuGetError/ {print "int " $2 "(void) { return 100; }"}'
    echo 'int cuGetErrorString(int error, const char** words) { (void)error; *words = "no CUDA device"; return 0; }'
    echo 'int cuGetErrorName(int error, const char** name) { (void)error; *name = "CUDA_ERROR_NO_DEVICE"; return 0; }'
} | gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$work/libcuda.so.1" -x c -
cd "$work"
LD_PRELOAD="$work/libcuda.so.1" "$work/venv/bin/python" "$checkout/.ci/pycuda_check.py"  # the linker dropped the empty one

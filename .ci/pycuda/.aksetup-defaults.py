# How PyCUDA is built against the CUDA wheels of a virtual environment instead of a system toolkit.
# PyCUDA's setup executes ~/.aksetup-defaults.py, so: HOME=$PWD/.ci/pycuda .venv/bin/pip install -e '.[cuda13]'
import ctypes.util
import os
import pathlib
import subprocess
import sysconfig

_site = pathlib.Path(sysconfig.get_paths()["purelib"]) / "nvidia"
_root = next(iter(sorted(_site.glob("cu1*"))), _site / "cuda_runtime")
CUDA_ROOT = str(_root)
CUDA_INC_DIR = [str(_path) for _path in sorted(_site.glob("*/include"))]  # CUDA 12's wheels have a folder each

# The linker wants libcuda.so; a driver installs libcuda.so.1 only. LIBCUDA names a stand-in where there is no driver.
_links = pathlib.Path(os.path.expanduser("~")) / "lib"
_links.mkdir(exist_ok=True)
_cache = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout.splitlines()
_found = [line.split(" => ")[1] for line in _cache if line.strip().startswith("libcuda.so.1 ")]
_libcuda = os.environ.get("LIBCUDA") or (_found[0] if _found else ctypes.util.find_library("cuda"))
if _libcuda and not (_links / "libcuda.so").exists():
    (_links / "libcuda.so").symlink_to(_libcuda)

CUDADRV_LIB_DIR = [str(_links)]
CUDART_LIB_DIR = [str(_root / "lib")]
CUDA_ENABLE_CURAND = False

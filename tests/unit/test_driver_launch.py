"""Launches through the driver's own functions: their arguments, and the calls that are made once. The driver is a
stand-in.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.compilation.toolchain import find_cxx

DRIVER = r"""
#include <cstdio>
#include <cstring>
static int encoded = 0, found = 0;
extern "C" {
int cuModuleLoadData(void** module, const void*) { *module = (void*)1; return 0; }
int cuModuleGetFunction(void** function, void*, const char*) { ++found; *function = (void*)2; return 0; }
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuModuleUnload(void*) { return 700; }  // what a broken context says
int cuGetErrorString(int status, const char** words) {
    *words = status == 1 ? "invalid argument" : "illegal";
    return 0;
}
int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void*, const unsigned long long* dim,
                           const unsigned long long*, const unsigned* box, const unsigned*, int, int, int, int) {
    ++encoded;
    memset(map, 0x5a, 128);
    return (unsigned long long)map % 64 || type != 6 || rank != 2 || dim[1] != 100 || box[0] != 64;
}
struct Attribute { int id, padding, value[16]; };
struct Config {
    unsigned grid[3], block[3], smem;
    void* stream;
    const Attribute* attributes;
    unsigned attribute_count;
};
int cuLaunchKernelEx(const Config* config, void*, void** parameters, void**) {
    const Attribute* const attribute = config->attributes;
    const bool early = config->attribute_count == 1 && attribute->id == 6 && attribute->value[0] == 1;
    printf("%u %u %u %p ", config->grid[0], config->block[0], config->smem, config->stream);
    printf("%llx %x %d, ", *(unsigned long long*)parameters[0], *(unsigned char*)parameters[1], *(int*)parameters[2]);
    printf("found %d, encoded %d%s\n", found, encoded, early ? ", early" : "");
    fflush(stdout);
    return config->grid[0] == 9;
}
}
"""
PROGRAM = """
import dataclasses
import numpy as np
from autotune.devices.device import Launch
from autotune.autotune_runtime.driver import DriverError
from autotune.devices.driver_launch import DriverModule
from autotune.devices.tensor_map import BoundTensorMap, TensorMap

arguments = (np.uint64(0xABC0), BoundTensorMap(TensorMap("f16", (64, 100), (64, 8), (1, 1), 128), 4096), np.int32(-7))
module = DriverModule(b"image")
launch = Launch("kernel", (3, 1, 1), (128, 1, 1), 1024, arguments)
module.ready(launch)
print("ready")
module.launch(launch, 0)
module.launch(dataclasses.replace(launch, early=True), 0x10)
try:
    module.launch(Launch("kernel", (9, 1, 1), (128, 1, 1), 1024, arguments), 0)
except DriverError as error:
    print(error)
module.unload()
"""


@pytest.mark.cxx
def test_arguments_arrive_and_maps_are_encoded_ahead_once(tmp_path: Path) -> None:
    (tmp_path / "driver.cpp").write_text(DRIVER)
    library = tmp_path / "libcuda.so.1"
    command = [str(find_cxx()), "-shared", "-fPIC", "-o", str(library), str(tmp_path / "driver.cpp")]
    subprocess.run(command, check=True)
    said = subprocess.run(
        [sys.executable, "-u", "-c", PROGRAM],
        env={"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.stdout.splitlines() == [
        "ready",
        "3 128 1024 (nil) abc0 5a -7, found 1, encoded 1",
        "3 128 1024 0x10 abc0 5a -7, found 1, encoded 1, early",
        "9 128 1024 (nil) abc0 5a -7, found 1, encoded 1",
        "cuLaunchKernelEx failed: invalid argument",
    ], said.stderr

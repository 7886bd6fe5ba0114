"""The host device: CUDA text compiled as C++ and run on the CPU."""

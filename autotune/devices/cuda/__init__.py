"""The `cuda:N` device through PyCUDA: compile, load, launch and time. This is the only package that imports pycuda."""

"""The `cuda:N` device through PyCUDA: compile, load, launch, events, cold L2. The only package that imports pycuda."""

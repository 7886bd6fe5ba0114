"""Build dispatchers from a tuned study's layers and kernels, record them, and write them as C++."""

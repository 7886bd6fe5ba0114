"""Build dispatchers from the layers and kernels of a tuned study, record them, and write them as C++."""

"""autotune: a code-generating kernel autotuner for convolution layers on NVIDIA GPUs.

A study file names conv2d layers; templates generate CUDA; every generated kernel is compiled,
verified against float64, timed and stored; the best kernel of each layer can be exported.
"""

__version__ = "0.1.0"

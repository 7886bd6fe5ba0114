"""Kernels evaluated in worker processes, which no kernel can take the run down with."""

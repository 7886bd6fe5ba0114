"""Evaluate kernels on devices in worker processes, or on the null device, which runs no kernels."""

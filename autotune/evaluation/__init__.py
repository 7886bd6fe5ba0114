"""Evaluators of kernels: devices in worker processes, or one that runs nothing."""

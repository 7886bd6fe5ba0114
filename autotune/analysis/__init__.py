"""Compute answers from recorded results, and profile and re-time the best kernels."""

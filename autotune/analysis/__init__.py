"""Answers computed from recorded results, and profiles and retimes of the best kernels."""

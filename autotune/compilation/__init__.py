"""Compile a program to a binary: find compilers, run them, cache the results."""

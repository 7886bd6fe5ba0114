"""Compile a program to a binary: find compilers, run them and cache the binaries."""

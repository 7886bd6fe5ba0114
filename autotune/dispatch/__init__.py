"""Dispatchers: how they are built from a tuned study's layers and kernels, their records and their C++."""

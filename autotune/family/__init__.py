"""Kernel families: the template file, its header, the feasible configs, and their sources."""

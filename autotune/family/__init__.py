"""A kernel family: its template file, what its header declares, its feasible configs, and their sources."""

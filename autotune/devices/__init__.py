"""The devices: `cuda` through PyCUDA and `host` on the CPU, behind the protocols in `device`."""

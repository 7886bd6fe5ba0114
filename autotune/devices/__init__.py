"""The backends: `cuda` through PyCUDA, `host` on the CPU, `null` which runs nothing."""

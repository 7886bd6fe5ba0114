"""The backends: `cuda` through PyCUDA, `host` on the CPU, `null` which runs nothing. Opened by name, never imported by name."""

"""Worker processes: what compiles and what holds a device, so that no kernel can take the run down with it."""

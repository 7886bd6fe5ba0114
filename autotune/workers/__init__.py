"""Worker processes compile kernels and own devices, so that no kernel can take the run down with it."""

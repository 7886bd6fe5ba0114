"""Worker processes that compile kernels and own devices, so that no kernel can take down the run."""

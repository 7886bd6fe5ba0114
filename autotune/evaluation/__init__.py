"""What kernels are evaluated with: devices in worker processes, or nothing at all."""

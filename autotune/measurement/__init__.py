"""Run, verify and time loaded kernels on a device, and measure the device's rates."""

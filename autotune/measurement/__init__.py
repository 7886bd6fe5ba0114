"""Run, verify and time loaded kernels on a device; measure the rates of the device."""

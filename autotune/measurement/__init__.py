"""A loaded kernel on a device: run, verified, timed; and what the device could do at most."""

"""Search spaces recorded by this and other tuners: Kernel Tuner's cache files and T4 result files, in and out."""

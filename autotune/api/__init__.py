"""What `autotune.tune`, `autotune.best` and `autotune.export` are; the command line calls the same parts."""

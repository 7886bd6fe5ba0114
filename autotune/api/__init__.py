"""The functions behind `autotune.tune`, `autotune.best` and `autotune.export`, which the command line also calls."""

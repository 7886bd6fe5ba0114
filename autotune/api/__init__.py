"""The functions behind `autotune.tune`, `autotune.best`, `autotune.export` and the commands of the same names."""

"""Import a network from a file, or from Python code that builds it, as a study that tunes its layers."""

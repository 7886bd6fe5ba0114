"""Tune layers: choose the next config of each layer, run the pipeline, and run the finals."""

"""Tuning: the next config of each layer, the pipeline, the finals."""

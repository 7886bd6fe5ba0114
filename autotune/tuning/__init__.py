"""The tuning line: what is asked for a layer, what is under way, what is decided."""

"""Write the results of a study or layer as a single HTML page without external files. Each chart comes with a table."""

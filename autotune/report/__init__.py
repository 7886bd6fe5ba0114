"""Write the results of a study or layer as one HTML page without external files: charts, each with a table."""

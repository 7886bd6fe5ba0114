"""The results of a study or layer as one HTML page that loads nothing: charts, each with a table."""

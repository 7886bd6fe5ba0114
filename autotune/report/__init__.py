"""A study's or layer's results as one HTML page that loads nothing: pictures, with a table behind each."""

"""Check that families keep their promises: verify configs on difficult problems, and run them under sanitizers."""

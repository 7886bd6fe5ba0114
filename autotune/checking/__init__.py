"""Check kernel families: verify configs on difficult problems, and run them under sanitizers."""

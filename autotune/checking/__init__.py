"""Families against their promises: their configs verified on awkward problems, and run under sanitizers."""

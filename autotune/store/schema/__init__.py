"""Declares tables and views, and migrates older files."""

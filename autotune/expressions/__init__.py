"""The language of integers in which operations and families are declared."""

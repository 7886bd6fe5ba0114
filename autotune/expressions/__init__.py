"""The integer expressions used to declare operations and families."""

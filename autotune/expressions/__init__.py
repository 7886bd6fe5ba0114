"""The language of whole numbers in which operations and families are declared."""

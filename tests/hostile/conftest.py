"""A folder with a small study, the tiny family and a database of results, as in the unit tests."""

from tests.unit.conftest import autotune, database, filled, folder, tune

__all__ = ["autotune", "database", "filled", "folder", "tune"]

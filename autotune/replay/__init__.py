"""The recorded trials of a database: as a device that answers with them, and as what the cost model is fitted to."""

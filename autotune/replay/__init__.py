"""The recorded trials of a database: a device that replays them, and the records that the cost model is fitted to."""

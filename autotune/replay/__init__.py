"""A database's recorded trials: a device that replays them, and the records that the cost model is fitted to."""

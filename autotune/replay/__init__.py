"""A database's recorded trials: a device that replays them, and the records to which the cost model is fitted."""

"""The recorded trials of a database: a device that answers with them, and the records that the cost model is fit to."""

"""One SQLite file: connections and transactions, its schema, how it is opened, whether its locks hold, a user's SQL."""

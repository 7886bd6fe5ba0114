"""One SQLite file: connections, transactions, schema and versions, opening the file, and running the user's SQL."""

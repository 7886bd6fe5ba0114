"""One SQLite file: connections, transactions, its schema and versions, opening it, and a user's SQL."""

"""One SQLite file: connections and transactions, its schema and migrations, opening it, a user's SQL, copies."""

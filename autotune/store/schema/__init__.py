"""The declaration of tables and views, and the migrations that update an older file."""

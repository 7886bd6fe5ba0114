"""The declaration of the data: tables, views, and the migrations that bring an older file to them."""

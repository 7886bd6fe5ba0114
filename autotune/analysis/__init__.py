"""What recorded results say, and the best of them looked at or measured again."""

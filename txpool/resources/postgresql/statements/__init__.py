"""What a statement does to its session and its transaction, by its text and its command tags."""

"""What is required of those who take part, and where a transaction may be worked in."""

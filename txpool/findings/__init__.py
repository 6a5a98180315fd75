"""What a check says, whatever it has looked at: findings, and those about files and tables of marks."""

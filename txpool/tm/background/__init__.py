"""What goes on beside the threads of transactions: timeouts, a resolver of what is in doubt, and counts."""

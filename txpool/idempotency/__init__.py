"""Work with a `transaction_id`, which is done once."""

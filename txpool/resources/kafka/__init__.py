"""Kafka: transactions whose messages are acknowledged at PREPARE, and that any process can end by one request."""

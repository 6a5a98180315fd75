"""A Kafka broker of Maven's: one node, which is its own controller."""

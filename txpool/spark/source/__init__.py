"""The "txpool" format of Spark: reading, writing and streaming through the Python Data Source API."""

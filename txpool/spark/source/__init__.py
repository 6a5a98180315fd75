"""The "txpool" format: reading, writing and streaming by the Python Data Source API."""

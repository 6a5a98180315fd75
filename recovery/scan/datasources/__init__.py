"""The datasources that recovery asks: which they are, and a thread for each."""

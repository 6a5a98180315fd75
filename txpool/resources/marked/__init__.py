"""Mode cmr: the branch whose row decides, the table of such rows, and their cleanup."""

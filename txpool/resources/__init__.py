"""Resource managers: the protocols that a database fulfils, what databases share, and a folder for each database."""

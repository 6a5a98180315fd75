"""Resource managers: what a transaction and recovery need of a database, and a folder for each database."""

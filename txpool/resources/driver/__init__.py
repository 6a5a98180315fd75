"""A DB-API driver as txpool uses it, and the local transactions over it."""

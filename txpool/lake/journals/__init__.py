"""The files of a warehouse, in a folder or a bucket, and the journals that list them before they are made."""

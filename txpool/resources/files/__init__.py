"""Folders of files: `driver = files`. A folder is staged, prepared by a manifest, and published by one rename."""

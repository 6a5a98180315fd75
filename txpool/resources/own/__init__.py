"""Resources of a user's own, named by a file: `driver = package.module:Class`."""

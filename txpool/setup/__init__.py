"""What a new installation needs: configuration files, the decision log, tables of marks."""

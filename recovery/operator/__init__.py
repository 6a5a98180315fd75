"""What an operator reads and does: lists of what is in doubt, alarms, commands by hand and their audit, suspension."""

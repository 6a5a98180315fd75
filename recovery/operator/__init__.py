"""What an operator sees and does: lists, deeds by hand, their audit, recovery suspended."""

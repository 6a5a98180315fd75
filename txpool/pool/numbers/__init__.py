"""The numbers of the pools of this process, and which pools there are."""

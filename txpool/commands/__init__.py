"""What the commands `txpool` and `txpool-recovery` share, and the commands for pools."""

"""The modules of a pass: what each looks for in the snapshot, and what it ends."""

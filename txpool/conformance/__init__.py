"""The conformance kit: the same cases against the resource manager of any datasource, a user's own included.

It runs txpool's own code on the real database, and reads there what has become of the work. It makes one table, and for
mode=cmr one table of marks, under names of its own with a random part; its transactions are those of a node and an
incarnation of its own. It reads and ends nothing else, and leaves nothing behind.
"""

"""How txpool reads SQL that others have written: what begins a statement, and where the next one begins.

A text is read, never parsed: comments, quotes and the first words are enough for what txpool asks of it. What differs
with the database is data, in `dialects`. What a server reads otherwise in one of its modes is read in each of these
ways, and is certain only if all of them agree. `characteristics` is how a transaction begins.
"""

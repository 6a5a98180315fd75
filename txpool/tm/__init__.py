"""The transaction manager: begins transactions, enlists datasources in them, and commits them in two phases.

The way of a commit:

- `demarcation` bounds it: a `with transaction()` block, a function that is `@transactional`, or begin() and commit();
- `manager` makes the transaction, and `ambient` keeps the one of this thread or task;
- `transaction` enlists datasources, if the `rules` allow it;
- `completion` ends it: callbacks, a request to the coordinator, and the error that says how it ended;
- the coordinator in `commit` prepares, records the decision in `txpool.log`, and commits.

Beside that way: `subordinate` (a Spark task's part), `own` (resources of a user's own), `background` (timeouts,
transactions in doubt), `completion.dropped` (transactions that nobody can end any more), `closing` (the process's end).
"""

"""The transaction manager: begins transactions, enlists datasources in them, and commits them in two phases.

The way of a commit:

- `demarcation` bounds it: a `with transaction()` block, a function that is `@transactional`, or begin() and commit();
- `manager` makes the transaction, and `ambient` keeps the one of this thread or task;
- `transaction` enlists datasources (`enlistment_rules`), and calls `synchronizations` around its end;
- it hands a request to the coordinator in `commit`, which prepares, records the decision in `txpool.log`, and commits;
- `outcome` says how it ended.

Beside that way: `subordinate` (a Spark task's part), `own` (resources of a user's own), `resolver` (transactions in
doubt), `dropped` (transactions that nobody can end any more), `timers`, `required` (work outside any transaction),
`closing` (the process's end).
"""

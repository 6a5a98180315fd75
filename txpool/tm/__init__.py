"""The transaction manager: begins transactions, enlists datasources in them, and commits them in two phases.

The way of a commit:

- `scope` (a `with transaction()` block, or `@transactional`) or `demarcation` (begin() and commit()) bounds it;
- `manager` makes the transaction, and `ambient` keeps the one of this thread or task;
- `transaction` enlists datasources (`enlisted`, `enlistment_rules`), and calls `synchronizations` around its end;
- it hands a `commit_request` to its `coordinator`, which prepares, records the decision in `txpool.log`, and commits;
- `heuristics` and `outcome` say how it ended.

Beside that way: `subordinate` (a Spark task's part), `resolver` (transactions in doubt), `dropped` (transactions that
nobody can end any more), `timers`, `retry`, `required` (work outside any transaction), `closing` (the process's end).
"""

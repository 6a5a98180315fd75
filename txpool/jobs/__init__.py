"""Spark's own jobs within a transaction: their tasks know of it, and are refused work that would commit by itself.

- `spark` says whether this process has loaded Spark;
- `properties` tells jobs of the ambient transaction of the thread that starts them;
- `bypass` refuses work of tasks that would go past that transaction;
- `driver_query` lets a task ask its driver whether its job belongs to an open transaction.

It works in every process that has loaded Spark, and imports nothing of Spark itself.
"""

"""How the tasks of a Spark job commit: what a task prepares, and which attempts the driver adopts or rolls back."""

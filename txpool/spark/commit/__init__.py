"""How the tasks of a Spark job commit: attempts, task and driver, what is listed, struck and adopted."""

"""What runs in a task of Spark, and what its driver sends with the job."""

"""What a process is: how its pending work ends, its exit codes, and the Javas that it may start."""

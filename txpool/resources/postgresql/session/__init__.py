"""A session with the server over psycopg: messages and answers, what is known of it, how its transactions begin."""

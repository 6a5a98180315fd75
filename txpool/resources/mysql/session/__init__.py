"""A session with a server of MariaDB or MySQL: how it connects, what it asks first, what is known of it."""

"""Recovery as a service: the daemon, and the status page that it serves with metrics and health."""

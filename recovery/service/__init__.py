"""Recovery as a service: the daemon, its status page, alarms and health."""

"""What messages need in a datasource: tables for queues and for positions of consumers; the driver sql-queue."""

"""Databases reached by JDBC: any Java driver, in a JVM inside this process."""

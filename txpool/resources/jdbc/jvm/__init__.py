"""The JVM inside this process, and the Java objects that open connections there."""

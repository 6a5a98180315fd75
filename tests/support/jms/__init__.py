"""A JMS broker of Maven's: Artemis, embedded in a process of its own."""

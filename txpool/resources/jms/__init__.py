"""JMS by JPype: sessions of Artemis whose branches are XAResource's, as JDBC's are."""

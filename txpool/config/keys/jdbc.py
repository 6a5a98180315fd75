"""The keys that only a datasource over JDBC has."""

from __future__ import annotations

from txpool.config.keys.key import Key

_JAVA_CLASS = {"pattern": r"[A-Za-z_$][\w$]*(\.[A-Za-z_$][\w$]*)*", "right": "the full name of a Java class"}

JDBC_KEYS = (
    Key(
        "xaDataSourceClassName",
        "string",
        None,
        "JDBC: the Java class javax.sql.XADataSource, such as org.h2.jdbcx.JdbcDataSource. Each further key of a plain "
        "name is a setter of that class: databaseName = orders calls setDatabaseName.",
        _JAVA_CLASS,
    ),
    Key(
        "jdbc.driver-class",
        "string",
        None,
        "JDBC without an XADataSource: the Java class java.sql.Driver. mode = cmr, last-resource or local.",
        _JAVA_CLASS,
    ),
    Key(
        "jdbc.classpath",
        "globs",
        None,
        "JDBC, JMS, outbox.deliver = jms: the driver's jars and folders, commas between them, relative to the file. "
        "A * stands for any jars.",
    ),
    Key(
        "jvm.options",
        "string",
        None,
        "JDBC, JMS, outbox.deliver = jms: options of the Java virtual machine, which the first one starts.",
    ),
    Key(
        "h2.accept",
        "choice",
        None,
        "H2 commits in silence if a program executes COMMIT or DDL in a transaction. txpool refuses such "
        "statements, and a vote after one. silent-commits accepts them: what H2 commits so is not part of the "
        "transaction.",
        {"choices": ("silent-commits",)},
    ),
)

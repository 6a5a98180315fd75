"""Files and tables of MariaDB and MySQL, for the tests of Spark's writes."""

from __future__ import annotations

from pathlib import Path

from tests.support.mysql import MySQLServer

#: Tables of txpool's own that stay.
OWN = {
    "txpool_spark_staging",
    "txpool_spark_living",
    "txpool_spark_created",
    "txpool_spark_writes",
    "txpool_spark_partitions",
    "xids",
    "landed",
}


def describe(folder: Path, server: MySQLServer, name: str = "shop", *more: str, driver: str = "pymysql") -> None:
    """Write a datasource's file, for the server's database one."""
    (folder / "mysql-secret").write_text(server.password)
    (folder / "mysql-secret").chmod(0o600)
    lines = [f"name = {name}", f"driver = {driver}", f"url = {server.url('one')}", "password = ${file:mysql-secret}"]
    (folder / f"{name}.properties").write_text("\n".join([*lines, "pool.check-bypass = 0", *more, ""]))


def left(server: MySQLServer) -> list[str]:
    """The tables beside the ones that belong there, and the rows that name staging tables and tables in the making."""
    names = {name for (name,) in server.execute("show tables", database="one")}
    registers = sorted(names & {"txpool_spark_staging", "txpool_spark_living", "txpool_spark_created"})
    registered = [str(row) for name in registers for row in server.execute(f"select * from one.{name}")]
    return sorted(names - OWN) + registered

"""What write_table() has written, Spark's own JDBC reader reads as it was sent: random schemas, rows and time zones.

The seed is printed. TXPOOL_JDBC_ROUNDS=100 has more schemas than the few of every run, and TXPOOL_JDBC_SEED repeats
one. The reader needs PostgreSQL's JDBC jar: Debian's libpostgresql-jdbc-java, or the path in POSTGRESQL_JAR.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.conftest import describe
from tests.spark.jdbc import JAR, jdbc
from tests.spark.types.jdbc_rounds import ROUNDS, SEED

if TYPE_CHECKING:
    from tests.conftest import Databases, Require
    from tests.support.spark import LocalCluster

pytestmark = pytest.mark.spark

_SCRIPT = """
    import sys

    from tests.spark.types.jdbc_rounds import rounds

    rounds(*sys.argv[1:])
"""


@pytest.mark.costly
def test_sparks_own_reader_reads_what_was_sent(
    local_cluster: LocalCluster, databases: Databases, tmp_path: Path, require: Require
) -> None:
    require(Path(JAR).exists(), "PostgreSQL's JDBC driver: apt-get install libpostgresql-jdbc-java")
    print(f"TXPOOL_JDBC_SEED={SEED}")
    (tmp_path / "secret").write_text(databases.server.password)
    (tmp_path / "secret").chmod(0o600)
    describe(tmp_path, "one", databases.url("one"))
    output = local_cluster(
        _SCRIPT,
        *(SEED, str(ROUNDS), str(tmp_path), jdbc(databases.server)["url"]),
        *(databases.dsn("one"), databases.server.user),
        master="local[2]",
        conf={
            "spark.driver.extraClassPath": JAR,
            "spark.sql.timeType.enabled": "true",
        },
    )
    print(output)
    assert int(output.split()[-2]) > ROUNDS

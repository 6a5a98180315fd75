"""A Spark Connect session has its driver elsewhere, and no transaction there: it is refused by name."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Require

pytestmark = pytest.mark.spark

_SCRIPT = """
    import json
    from pyspark.sql import SparkSession

    from txpool.errors import NotSupportedError
    from txpool.tm.manager import configure
    from txpool.tm.demarcation.block import transaction
    from txpool.spark import foreach_partition, once_per_batch, write_table

    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    configure(node_name="driver", log_url="sqlite:///txlog", log_create=True)
    frame = spark.range(4)
    said = [type(frame).__module__]
    for write in (
        lambda: foreach_partition(frame, print),
        lambda: write_table(frame, "one.properties", "landed"),
        lambda: once_per_batch(print, "one.properties"),
    ):
        try:
            with transaction():
                write()
        except NotSupportedError as error:
            said.append(str(error))
    print(json.dumps(said))
    spark.stop()
"""


@pytest.mark.costly
def test_spark_connect_is_refused_by_name(local_cluster: Callable[..., str], require: Require) -> None:
    require(importlib.util.find_spec("grpc"), "Spark Connect: pip install 'txpool[test]'")
    output = local_cluster(_SCRIPT, master="local[2]")
    module, *said = json.loads(output.splitlines()[-1])
    assert module == "pyspark.sql.connect.dataframe"
    for text, name in zip(said, ("foreach_partition()", "write_table()", "once_per_batch()"), strict=True):
        assert text.startswith(f"{name} needs Spark's driver in this process, and Spark Connect has it elsewhere")
        assert text.endswith("Nothing was done")

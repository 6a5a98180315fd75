"""The spans of Spark's tasks belong to the trace of the driver's transaction, whichever way they write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from txpool.datasource import connect
from txpool.spark import foreach_partition, register, write_table
from txpool.tm.demarcation.block import transaction
from txpool.tracing import opentelemetry as otel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.conftest import Databases

pytestmark = pytest.mark.spark


def into_a_file(folder: str) -> TracerProvider:
    """A provider, here or in a task's process, whose spans are lines of a file of its own."""
    import os

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

    provider = TracerProvider()
    file = open(f"{folder}/spans-{os.getpid()}.jsonl", "a")
    exporter = ConsoleSpanExporter(out=file, formatter=lambda span: span.to_json(indent=None) + "\n")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


@pytest.fixture(autouse=True)
def traced(sources: Path, databases: Databases) -> Iterator[None]:
    for name in (databases.one, databases.two):
        databases.execute(name, "create table landed (id bigint)")
        databases.execute(name, "create table keyed (id bigint primary key)")
    otel.instrument(into_a_file(str(sources)), in_tasks=partial(into_a_file, str(sources)))
    yield
    otel.uninstrument()


def spans(folder: Path) -> list[dict[str, Any]]:
    lines = (line for path in folder.glob("spans-*.jsonl") for line in path.read_text().splitlines())
    return [json.loads(line) for line in lines]


def named(found: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [span for span in found if span["name"] == name]


def test_tasks_are_children_of_the_drivers_transaction(
    spark: SparkSession, databases: Databases, sources: Path
) -> None:
    def write(rows: Iterator[Any]) -> None:
        from opentelemetry import trace

        from txpool.datasource import connect

        assert trace.get_current_span().get_span_context().is_valid, "the user's own spans are within the task's"
        cursor = connect("one.properties").cursor()
        for row in rows:
            cursor.execute("insert into landed values (%s)", [row.id])

    with transaction(note="nightly") as tx:
        foreach_partition(spark.range(10, numPartitions=2), write)
        write_table(spark.range(10, numPartitions=2), "two.properties", "keyed")
        write_table(spark.range(10, 20, numPartitions=2), "two.properties", "keyed", strategy="staged")
        connect("two.properties").cursor().execute("insert into landed values (1)")
    assert databases.rows("one", "select count(*) from landed") == [(10,)]
    assert databases.rows("two", "select count(*) from keyed") == [(20,)]
    found = spans(sources)
    (whole,) = named(found, "txpool.transaction")
    assert {span["context"]["trace_id"] for span in found} == {whole["context"]["trace_id"]}
    assert whole["attributes"]["txpool.outcome"] == "committed"
    tasks = named(found, "txpool.task")
    assert {span["parent_id"] for span in tasks} == {whole["context"]["span_id"]}
    assert {span["attributes"]["txpool.gtrid"] for span in tasks} == {tx.gtrid}
    places = sorted((span["attributes"]["txpool.write"], span["attributes"]["txpool.partition"]) for span in tasks)
    assert places == [(write, partition) for write in range(3) for partition in range(2)]
    inside = {span["context"]["span_id"] for span in tasks if span["attributes"]["txpool.write"] < 2}
    for name in ("txpool.datasource", "txpool.prepare"):
        assert inside <= {span["parent_id"] for span in named(found, name)}, name
    assert len({path.name for path in sources.glob("spans-*.jsonl")}) > 1, "they ran in other processes"


def test_a_task_that_fails_is_an_error_of_its_span(spark: SparkSession, databases: Databases, sources: Path) -> None:
    def write(rows: Iterator[Any]) -> None:
        from txpool.datasource import connect

        connect("one.properties").cursor().execute("insert into landed values (1)")
        raise LookupError("the user's own words")

    with pytest.raises(Exception, match="LookupError"), transaction():
        foreach_partition(spark.range(1, numPartitions=1), write)
    found = spans(sources)
    (whole,) = named(found, "txpool.transaction")
    tasks = named(found, "txpool.task")
    assert tasks
    for span in (whole, *tasks):
        assert span["status"]["status_code"] == "ERROR"
        assert "the user's own words" not in json.dumps(span)
    assert {span["attributes"]["error.type"] for span in tasks} == {"LookupError"}
    assert {span["context"]["trace_id"] for span in tasks} == {whole["context"]["trace_id"]}


@pytest.mark.parametrize("ambient", [False, True])
@pytest.mark.parametrize("table", ["landed", "keyed"])  # direct, and staged
def test_a_write_by_the_format_is_one_trace(
    ambient: bool, table: str, spark: SparkSession, databases: Databases, sources: Path
) -> None:
    register(spark)

    def save() -> None:
        writer = spark.range(10, numPartitions=2).write.format("txpool").mode("append")
        writer.option("datasource", "one.properties").option("dbtable", table).save()

    if ambient:
        with transaction():
            save()
    else:
        save()
    assert databases.rows("one", f"select count(*) from {table}") == [(10,)]
    found = spans(sources)
    (whole,) = named(found, "txpool.transaction")
    tasks = named(found, "txpool.task")
    assert len(tasks) == 2
    assert {span["context"]["trace_id"] for span in found} == {whole["context"]["trace_id"]}
    above = whole if ambient else named(found, "txpool.plan")[0]
    assert {span["parent_id"] for span in tasks} == {above["context"]["span_id"]}
    assert {span["attributes"]["txpool.gtrid"] for span in tasks} == {whole["attributes"]["txpool.gtrid"]}


def test_a_provider_that_cannot_be_made_in_a_task_fails_no_task(spark: SparkSession, databases: Databases) -> None:
    def broken() -> TracerProvider:
        raise LookupError("no collector here")

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=lambda _: "")))
    otel.instrument(provider, in_tasks=broken)

    def write(rows: Iterator[Any]) -> None:
        from txpool.datasource import connect

        connect("one.properties").cursor().execute("insert into landed values (1)")

    with transaction():
        foreach_partition(spark.range(2, numPartitions=2), write)
    assert databases.rows("one", "select count(*) from landed") == [(2,)]

"""A stream into two databases: each batch is one transaction, and a batch that Spark repeats is done once."""

import os
import tempfile
from pathlib import Path

import psycopg
from pyspark.sql import SparkSession

import txpool
from txpool.demo.job import prepare_spark
from txpool.demo.server import EmbeddedPostgres
from txpool.spark import once_per_batch, write_table

if "ORDERS_URL" not in os.environ:  # no databases of yours: a server for a try, which ends with this program
    server = EmbeddedPostgres(databases=["orders", "totals"])
    server.start()
    os.environ |= {"ORDERS_URL": server.url("orders"), "TOTALS_URL": server.url("totals")}
    os.environ["PGPASSWORD"] = server.password

for url, table in (("ORDERS_URL", "orders (id bigint, amount bigint)"), ("TOTALS_URL", "totals (amount bigint)")):
    with psycopg.connect(os.environ[url]) as connection:
        connection.execute(f"create table {table}")

folder = tempfile.TemporaryDirectory()
txpool.configure(node_name="etl-1", log_url=f"sqlite:///{folder.name}/txlog", log_create=True)
orders = txpool.DataSource("orders", driver="psycopg", url=os.environ["ORDERS_URL"])
totals = txpool.DataSource("totals", driver="psycopg", url=os.environ["TOTALS_URL"])

prepare_spark(Path(folder.name))  # finds a Java
settings = {"spark.sql.shuffle.partitions": "2", "spark.ui.showConsoleProgress": "false"}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
spark.sparkContext.setLogLevel("OFF")


def write(batch, number):
    write_table(batch, orders, "orders")
    write_table(batch.groupBy().sum("amount").toDF("amount"), totals, "totals")
    if Path(folder.name, "fails").exists():
        raise RuntimeError("both tables are written, and the batch fails")


def run():
    stream = spark.readStream.schema("id long, amount long").json(f"{folder.name}/arrived")
    writer = stream.writeStream.foreachBatch(once_per_batch(write, orders)).trigger(availableNow=True)
    writer.option("checkpointLocation", f"{folder.name}/checkpoint").start().awaitTermination()


def show(what):
    with psycopg.connect(os.environ["ORDERS_URL"]) as orders, psycopg.connect(os.environ["TOTALS_URL"]) as totals:
        (rows, amount) = orders.execute("select count(*), sum(amount) from orders").fetchone()
        (total,) = totals.execute("select sum(amount) from totals").fetchone()
    print(f"{what}: {rows} orders of {amount}, totals of {total}", flush=True)


def arrive(first):
    rows = spark.range(first, first + 100).selectExpr("id", "id as amount")
    rows.coalesce(1).write.mode("append").json(f"{folder.name}/arrived")


arrive(1)
run()
show("the first batch")

arrive(101)
Path(folder.name, "fails").touch()
try:
    run()
except Exception:
    show("a batch that fails")
Path(folder.name, "fails").unlink()
run()
show("it is run again")

# A driver that is lost after the commit, before Spark has noted it: the batch comes again.
for note in Path(folder.name, "checkpoint/commits").glob("*1*"):
    note.unlink()
run()
show("Spark repeats it")

"""Spark's own mapPartitions: each task commits its partition in two databases, and a lost task does nothing twice."""

import os
import tempfile
from pathlib import Path

import psycopg
from pyspark.sql import SparkSession

from txpool.demo.job import prepare_spark
from txpool.demo.server import EmbeddedPostgres

if "ORDERS_URL" not in os.environ:  # no databases of yours: a server for a try, which ends with this program
    server = EmbeddedPostgres(databases=["orders", "billing"])
    server.start()
    os.environ |= {"ORDERS_URL": server.url("orders"), "BILLING_URL": server.url("billing")}
    os.environ["PGPASSWORD"] = server.password

folder = tempfile.TemporaryDirectory()
os.environ["TXLOG_URL"] = f"sqlite:///{folder.name}/txlog"
with psycopg.connect(os.environ["ORDERS_URL"]) as orders, psycopg.connect(os.environ["BILLING_URL"]) as billing:
    orders.execute("create table orders (id bigint primary key, amount numeric)")
    billing.execute("create table invoices (id bigint primary key, amount numeric)")

prepare_spark(Path(folder.name))  # finds a Java
settings = {"spark.ui.showConsoleProgress": "false"}
spark = SparkSession.builder.master("local[2,4]").config(map=settings).getOrCreate()  # each task has four tries
spark.sparkContext.setLogLevel("OFF")
spark.sparkContext.addPyFile(str(Path(__file__).with_name("tasks.py")))

from tasks import load  # noqa: E402 - as the executors find it

df = spark.range(1, 1001, numPartitions=3).selectExpr("id", "cast(id as decimal(10, 2)) as amount")
for what in ("loaded", "run again"):
    print(f"{what}:", df.rdd.mapPartitionsWithIndex(load).collect(), flush=True)
with psycopg.connect(os.environ["ORDERS_URL"]) as orders, psycopg.connect(os.environ["BILLING_URL"]) as billing:
    found = orders.execute("select count(*) from orders").fetchone()
    found += billing.execute("select count(*) from invoices").fetchone()
print(f"{found[0]} orders, {found[1]} invoices")
spark.stop()

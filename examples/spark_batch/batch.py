"""A Spark job over two PostgreSQL databases and a ledger in SQLite: all of it lands or nothing, and only once."""

import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import txpool
from txpool.demo.job import prepare_spark
from txpool.demo.server import EmbeddedPostgres
from txpool.spark import write_table

if "ORDERS_URL" not in os.environ:  # no databases of yours: a server for a try, which ends with this program
    server = EmbeddedPostgres(databases=["orders", "totals"])
    server.start()
    os.environ |= {"ORDERS_URL": server.url("orders"), "TOTALS_URL": server.url("totals")}
    os.environ["PGPASSWORD"] = server.password
    os.environ |= {"ORDERS_PASSWORD": server.password, "TOTALS_PASSWORD": server.password}

folder = Path(os.environ.get("FOLDER") or tempfile.mkdtemp(prefix="spark_batch-"))
conf = folder / "conf"

# What an administrator does once: tables, configuration files, the decision log, and the ledger's table of marks.
with psycopg.connect(os.environ["ORDERS_URL"]) as orders, psycopg.connect(os.environ["TOTALS_URL"]) as totals:
    orders.execute("create table orders (id bigint primary key, customer bigint, amount numeric)")
    totals.execute("create table totals (customer bigint primary key, amount numeric)")
with sqlite3.connect(folder / "ledger.db") as ledger:
    ledger.execute("create table loads (name text primary key, rows int)")
urls = {
    "orders": os.environ["ORDERS_URL"],
    "totals": os.environ["TOTALS_URL"],
    "ledger": f"sqlite:///{folder}/ledger.db",
}
init = [sys.executable, "-m", "txpool", "init", conf, *(f"{name}={url}" for name, url in urls.items())]
if subprocess.run(init, check=False, stdout=subprocess.DEVNULL).returncode not in (0, 20):  # 20 is a warning
    sys.exit("txpool init has failed")


def load(df):
    with txpool.transaction(transaction_id="load-2026-11-22", record_in=conf / "orders.properties"):
        totals = df.groupBy("customer").sum("amount").toDF("customer", "amount")
        write_table(totals, conf / "totals.properties", "totals")
        report = write_table(df, conf / "orders.properties", "orders")
        with txpool.connect(conf / "ledger.properties") as ledger:
            ledger.execute("insert into loads values ('2026-11-22', ?)", (report.rows,))


def show(what):
    with psycopg.connect(os.environ["ORDERS_URL"]) as orders, psycopg.connect(os.environ["TOTALS_URL"]) as totals:
        found = orders.execute("select count(*) from orders").fetchone()
        found += totals.execute("select count(*) from totals").fetchone()
    with sqlite3.connect(folder / "ledger.db") as ledger:
        loads = ledger.execute("select * from loads").fetchall()
    print(f"{what}: {found[0]} orders, {found[1]} totals, ledger {loads}", flush=True)


prepare_spark(folder)  # finds a Java
txpool.configure(conf / "txpool.properties")
settings = {"spark.sql.shuffle.partitions": "2", "spark.ui.showConsoleProgress": "false"}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
df = spark.range(1, 1001).selectExpr("id", "id % 7 as customer", "cast(id as decimal(10, 2)) as amount")

try:  # the totals are written, and then a task fails that writes the orders
    load(df.selectExpr("if(id = 900, raise_error('a bad row'), id) as id", "customer", "amount"))
except PySparkException:
    show("a task fails")
load(df)
show("loaded")
try:
    load(df)
except txpool.AlreadyDone:
    show("run again")
print(f"the files are in {folder}")

"""A Spark job writes an Iceberg table, a folder of Parquet, a table and a ledger: all of it lands or nothing, once."""

import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import txpool
import txpool.lake
from txpool.demo.job import prepare_spark
from txpool.demo.server import EmbeddedPostgres
from txpool.spark import write_files, write_table

if "ORDERS_URL" not in os.environ:  # no databases of yours: a server for a try, which ends with this program
    server = EmbeddedPostgres(databases=["orders", "totals"])
    server.start()
    os.environ |= {"ORDERS_URL": server.url("orders"), "TOTALS_URL": server.url("totals")}
    os.environ["PGPASSWORD"] = server.password

folder = Path(os.environ.get("FOLDER") or tempfile.mkdtemp(prefix="lake-"))
DAY = "2026-11-27"
FILES = {
    "orders": "driver = psycopg\nmode = xa\nurl = ${env:ORDERS_URL}",  # has the lake's catalog
    "totals": "driver = psycopg\nmode = xa\nurl = ${env:TOTALS_URL}",
    "ledger": "driver = sqlite3\nmode = cmr\nurl = sqlite:///ledger.db",
    "warehouse": "driver = iceberg\ncatalog = orders.properties\nwarehouse = warehouse",
    "exports": "driver = files\nfolder = exports",
}

# What an administrator does once: files, folders, tables, the decision log, and the ledger's table of marks.
for name, lines in FILES.items():
    (folder / f"{name}.properties").write_text(f"name = {name}\n{lines}\n")
(folder / "recovery.properties").write_text(
    f"node.name = etl-1\nlog.url = sqlite:///txlog\ndatasources = {', '.join(f'{name}.properties' for name in FILES)}\n"
)
for name in ("warehouse", "exports"):
    (folder / name).mkdir()
with psycopg.connect(os.environ["TOTALS_URL"]) as totals:
    totals.execute("create table totals (customer bigint primary key, amount numeric)")
with sqlite3.connect(folder / "ledger.db") as ledger:
    ledger.execute("create table loads (name text primary key, rows int)")
init = [sys.executable, "-m", "recovery", "init", "--conf", folder / "recovery.properties"]
if subprocess.run(init, check=False, stdout=subprocess.DEVNULL).returncode not in (0, 20):  # 20 is a warning
    sys.exit("txpool-recovery init has failed")
txpool.configure(node_name="etl-1", log_url=f"sqlite:///{folder}/txlog")
with txpool.transaction():
    lake = txpool.lake.catalog(folder / "warehouse.properties")
    lake.create_namespace("shop")
    lake.create_table(
        "shop.orders", pa.schema([("id", pa.int64()), ("customer", pa.int64()), ("amount", pa.decimal128(10, 2))])
    )


def load(df):
    with txpool.transaction(transaction_id=f"load-{DAY}", record_in=folder / "totals.properties"):
        report = write_table(df, folder / "warehouse.properties", "shop.orders")
        write_files(df, folder / "exports.properties", f"orders/{DAY}", format="parquet")
        totals = df.groupBy("customer").sum("amount").toDF("customer", "amount")
        write_table(totals, folder / "totals.properties", "totals")
        with txpool.connect(folder / "ledger.properties") as ledger:
            ledger.execute("insert into loads values (?, ?)", (DAY, report.rows))


def show(what):
    with txpool.transaction():
        table = txpool.lake.catalog(folder / "warehouse.properties").load_table("shop.orders")
        in_lake = table.scan().to_arrow().num_rows
    published = folder / "exports" / "orders" / DAY
    in_files = spark.read.parquet(str(published)).count() if published.exists() else 0
    with psycopg.connect(os.environ["TOTALS_URL"]) as totals:
        in_totals = totals.execute("select count(*) from totals").fetchone()[0]
    with sqlite3.connect(folder / "ledger.db") as ledger:
        loads = ledger.execute("select * from loads").fetchall()
    print(f"{what}: {in_lake} in Iceberg, {in_files} in Parquet, {in_totals} totals, ledger {loads}", flush=True)


prepare_spark(folder)  # finds a Java
settings = {"spark.sql.shuffle.partitions": "2", "spark.ui.showConsoleProgress": "false"}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
df = spark.range(1, 1001).selectExpr("id", "id % 7 as customer", "cast(id as decimal(10, 2)) as amount")

try:  # the Iceberg table and the folder are written, and then a total has no key
    load(df.selectExpr("id", "if(id = 900, null, customer) as customer", "amount"))
except PySparkException:
    show("a task fails")
load(df)
show("loaded")
try:
    load(df)
except txpool.AlreadyDone:
    show("run again")
print(f"the files are in {folder}")

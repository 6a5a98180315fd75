"""Stands for Airflow: it runs the task, whose worker is killed, tries it again, and once more after that."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg

from txpool.demo.server import EmbeddedPostgres

if "ORDERS_URL" not in os.environ:  # no databases of yours: a server for a try, which ends with this program
    server = EmbeddedPostgres(databases=["orders", "billing"])
    server.start()
    os.environ |= {"ORDERS_URL": server.url("orders"), "BILLING_URL": server.url("billing")}
    os.environ["PGPASSWORD"] = server.password


def run(what, **environment):
    task = [sys.executable, Path(__file__).with_name("load.py"), "scheduled__2026-11-22"]
    ended = subprocess.run(task, check=False, env=os.environ | environment, stdout=subprocess.PIPE, text=True)
    said = ended.stdout.strip() if ended.returncode == 0 else f"killed by signal {-ended.returncode}"
    with psycopg.connect(os.environ["ORDERS_URL"]) as orders, psycopg.connect(os.environ["BILLING_URL"]) as billing:
        (number,) = orders.execute("select count(*) from orders").fetchone()
        (amount,) = billing.execute("select coalesce(sum(amount), 0) from days").fetchone()
    print(f"{what}: {said}; {number} orders, billed {amount}")


with psycopg.connect(os.environ["ORDERS_URL"]) as orders, psycopg.connect(os.environ["BILLING_URL"]) as billing:
    orders.execute("create table orders (id int, amount int)")
    billing.execute("create table days (run text, amount int)")

with tempfile.TemporaryDirectory() as folder:
    os.environ["TXLOG_URL"] = f"sqlite:///{folder}/txlog"
    # The worker is killed at the worst moment: the outcome is decided, and no database has it.
    run("the first try", TXPOOL_FAILPOINTS="coordinator.decided=kill")
    run("the next try")
    run("run once more")  # as when somebody clears the task

"""The task: a day's orders into one database, and their sum into another. `python load.py RUN_ID` is one try of it."""

import os
import sys

import txpool

ORDERS = txpool.DataSource("orders", driver="psycopg", url=os.environ["ORDERS_URL"])
BILLING = txpool.DataSource("billing", driver="psycopg", url=os.environ["BILLING_URL"])
ROWS = [(1, 30), (2, 12), (3, 58)]


def load(run_id):
    try:
        with txpool.transaction(transaction_id=f"load-{run_id}", record_in=ORDERS, note=run_id):
            with ORDERS.connect() as orders, orders.cursor() as cursor:
                cursor.executemany("insert into orders values (%s, %s)", ROWS)
            with BILLING.connect() as billing:
                billing.execute("insert into days values (%s, %s)", (run_id, sum(amount for _, amount in ROWS)))
    except txpool.AlreadyDone:
        return "was done before"
    return "done"


if __name__ == "__main__":
    txpool.configure(node_name="worker-1", log_url=os.environ["TXLOG_URL"], log_create=True)
    print(load(sys.argv[1]))

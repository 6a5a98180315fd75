"""What runs on the executors: each partition is a transaction over two databases, which happens once."""

import os
import signal

import txpool
from txpool.spark import whole

# Once in each Python worker: this module is imported there.
txpool.configure(node_name="executors-1", log_url=os.environ["TXLOG_URL"], log_create=True)
ORDERS = txpool.DataSource("orders", driver="psycopg", url=os.environ["ORDERS_URL"])
BILLING = txpool.DataSource("billing", driver="psycopg", url=os.environ["BILLING_URL"])


def load(partition, rows):
    try:
        with txpool.transaction(transaction_id=f"load-2026-11-22/{partition}", record_in=ORDERS):
            orders, billing = ORDERS.connect(), BILLING.connect()
            for row in whole(rows):
                orders.execute("insert into orders values (%s, %s)", (row.id, row.amount))
                billing.execute("insert into invoices values (%s, %s)", (row.id, row.amount))
    except txpool.AlreadyDone:
        yield partition, "was done before"
        return
    if partition == 1:  # committed, and lost before Spark hears of it: Spark runs the task again
        os.kill(os.getpid(), signal.SIGKILL)
    yield partition, "done"

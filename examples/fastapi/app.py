"""A service whose requests are transactions over two databases: a transfer is in both, or in neither."""

import os
import tempfile

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

import txpool
from txpool.demo.server import EmbeddedPostgres
from txpool.web.fastapi import in_transaction

if "ORDERS_URL" not in os.environ:  # no databases of yours: a server for a try, which ends with this program
    server = EmbeddedPostgres(databases=["orders", "billing"])
    server.start()
    os.environ |= {"ORDERS_URL": server.url("orders"), "BILLING_URL": server.url("billing")}
    os.environ["PGPASSWORD"] = server.password

folder = tempfile.TemporaryDirectory()
txpool.configure(node_name="web-1", log_url=f"sqlite:///{folder.name}/txlog", log_create=True)
app = FastAPI()


class Transfer(BaseModel):
    amount: int


def connect(name):
    return txpool.connect(os.environ[name])


for name in ("ORDERS_URL", "BILLING_URL"):
    with connect(name) as connection:
        connection.execute("create table if not exists transfer (amount int)")


@app.post("/transfers", dependencies=[in_transaction()])
def create(transfer: Transfer):
    with connect("ORDERS_URL") as orders:
        orders.execute("insert into transfer values (%s)", (-transfer.amount,))
    with connect("BILLING_URL") as billing:
        billing.execute("insert into transfer values (%s)", (transfer.amount,))
    if transfer.amount > 100:  # both inserts are sent: the exception takes them back
        raise HTTPException(409, f"nobody may move {transfer.amount}")
    return "moved"


@app.get("/balances")
def balances():
    found = {}
    for name in ("ORDERS_URL", "BILLING_URL"):
        with connect(name) as connection:
            found[name] = connection.execute("select coalesce(sum(amount), 0) from transfer").fetchone()[0]
    return {"orders": found["ORDERS_URL"], "billing": found["BILLING_URL"]}

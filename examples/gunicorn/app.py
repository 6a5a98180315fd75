"""A WSGI application: a transfer between two databases, and the balance of both."""

import os

import txpool
from txpool.web.wsgi import TransactionMiddleware

txpool.configure(node_name="web-1", log_url=os.environ["TXLOG_URL"], log_create=True)


def move(name, amount):
    with txpool.connect(os.environ[f"{name}_URL"]) as connection:
        connection.execute("create table if not exists transfer (amount int)")
        connection.execute("insert into transfer values (%s)", (amount,))


def balance(name):
    with txpool.connect(os.environ[f"{name}_URL"]) as connection:
        if connection.execute("select to_regclass('transfer')").fetchone() == (None,):
            return 0
        return connection.execute("select sum(amount) from transfer").fetchone()[0]


def app(environ, start_response):
    status, text = "200 OK", ""
    if environ["REQUEST_METHOD"] == "POST":
        amount = int(environ["PATH_INFO"].rpartition("/")[2])
        move("ORDERS", -amount)
        move("BILLING", amount)
        if amount > 100:  # too late for the application to take anything back: the middleware does
            status, text = "409 Conflict", f"nobody may move {amount}\n"
    start_response(status, [("Content-Type", "text/plain")])
    return [(text or f"orders {balance('ORDERS')}, billing {balance('BILLING')}\n").encode()]


application = TransactionMiddleware(app)

"""gunicorn's own file: where it listens, what it serves, and a database server for a try."""

import os
import shutil
import tempfile
from pathlib import Path

from txpool.demo.server import EmbeddedPostgres

chdir = str(Path(__file__).parent)
wsgi_app = "app:application"
bind = "127.0.0.1:8000"
workers = 2

_folder = tempfile.mkdtemp()
_server = EmbeddedPostgres(databases=["orders", "billing"])


def on_starting(arbiter):
    os.environ["TXLOG_URL"] = f"sqlite:///{_folder}/txlog"  # one log for all workers
    if "ORDERS_URL" not in os.environ:  # no databases of yours
        _server.start()
        os.environ |= {"ORDERS_URL": _server.url("orders"), "BILLING_URL": _server.url("billing")}
        os.environ["PGPASSWORD"] = _server.password


def on_exit(arbiter):
    _server.close()
    shutil.rmtree(_folder)

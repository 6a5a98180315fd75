"""SQLAlchemy's ORM over two databases: an order here and its invoice there, or neither."""

import os
import tempfile

from sqlalchemy import select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import txpool
from txpool.demo.server import EmbeddedPostgres

if "ORDERS_URL" not in os.environ:  # no databases of yours: a server for a try, which ends with this program
    server = EmbeddedPostgres(databases=["orders", "billing"])
    server.start()
    os.environ |= {"ORDERS_URL": server.url("orders"), "BILLING_URL": server.url("billing")}
    os.environ["PGPASSWORD"] = server.password


class Orders(DeclarativeBase):
    pass


class Billing(DeclarativeBase):
    pass


class Order(Orders):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]


class Invoice(Billing):
    __tablename__ = "invoices"
    order_id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]


def datasource(name):
    return txpool.DataSource(name, driver="psycopg", url=os.environ[f"{name.upper()}_URL"])


folder = tempfile.TemporaryDirectory()
txpool.configure(node_name="shop-1", log_url=f"sqlite:///{folder.name}/txlog", log_create=True)
# Within a transaction a session's commit() joins, and the transaction decides.
orders = txpool.create_engine(datasource("orders"))
billing = txpool.create_engine(datasource("billing"))
Orders.metadata.create_all(orders)
Billing.metadata.create_all(billing)


def sell(number, amount):
    with Session(orders) as session:
        session.add(Order(id=number, amount=amount))
        session.commit()
    if amount > 100:
        raise ValueError(f"nobody pays {amount}")
    with Session(billing) as session:
        session.add(Invoice(order_id=number, amount=amount))
        session.commit()


for number, amount in [(1, 30), (2, 5000), (3, 12)]:
    try:
        with txpool.transaction():
            sell(number, amount)
        print(f"order {number} is sold")
    except ValueError as error:
        print(f"order {number} is rolled back: {error}")

for name, engine, column in (("orders", orders, Order.id), ("invoices", billing, Invoice.order_id)):
    with Session(engine) as session:
        print(name, session.scalars(select(column).order_by(column)).all())

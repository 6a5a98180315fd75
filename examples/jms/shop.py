"""Orders out of a queue, into a database and another queue: each once."""

import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import txpool

HERE = Path(__file__).parent


def start_broker(folder):
    """A broker, its port and its class path, out of Maven."""
    jars = folder / "classpath"
    maven = ["mvn", "-q", "-B", "-f", HERE / "pom.xml", "dependency:build-classpath", f"-Dmdep.outputFile={jars}"]
    subprocess.run(maven, check=True, stdout=sys.stderr)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    config = (HERE / "broker.xml").read_text().replace("FOLDER", str(folder)).replace("PORT", str(port))
    (folder / "broker.xml").write_text(config)
    command = [sys.executable, HERE / "broker.py", jars.read_text(), folder / "broker.xml"]
    log = folder / "broker.log"
    with log.open("ab") as said:
        broker = subprocess.Popen(command, stdout=said, stderr=said)
    while "started\n" not in log.read_text():
        if broker.poll() is not None:
            raise SystemExit(log.read_text())
        time.sleep(0.1)
    return broker, port, jars.read_text()


def main():
    broker, port, jars = start_broker(Path.cwd())
    try:
        shop(port, jars)
    finally:
        broker.kill()
        broker.wait()


def shop(port, jars):
    for queue in ("orders", "shipped"):
        Path(f"{queue}.properties").write_text(
            f"driver = jms\nurl = tcp://127.0.0.1:{port}\nqueue = {queue}\njdbc.classpath = {jars}\n"
            "parking.after = 2\nprepared.owners = any\n"
        )
    Path("store.properties").write_text("driver = sqlite3\nmode = cmr\nurl = sqlite:///store.db\n")
    with closing(sqlite3.connect("store.db")) as connection:
        connection.execute("create table orders (number text, amount text)")
    txpool.configure(node_name="shop-1", log_url="sqlite:///txlog", log_create=True)
    store = txpool.DataSource.from_properties("store.properties")
    store.xids_table().create()

    orders, shipped = txpool.session("orders.properties"), txpool.session("shipped.properties")
    for number, amount in enumerate(("9", "20", "much", "7"), 1):
        orders.send(amount, headers={"number": str(number)})

    @txpool.consumer(orders)
    def ship(messages):
        with store.connect() as connection:
            for message in messages:
                connection.execute("insert into orders values (?, ?)", [message.headers["number"], message.text])
                shipped.send(message.body)
                int(message.text)

    ship.run(lambda: orders.parked()[0] == 1 and len(rows()) == 3)
    print("rows", rows())
    with txpool.transaction():
        print("shipped", [message.text for message in shipped.receive(10, timeout=60)])
    print(orders.parked()[0], "parked")
    orders.close()
    shipped.close()
    store.close()


def rows():
    with closing(sqlite3.connect("store.db")) as store:
        return store.execute("select * from orders order by number").fetchall()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main()

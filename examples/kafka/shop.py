"""Orders out of a topic, into a database and another topic: each once."""

import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.admin import NewTopic

import txpool

HERE = Path(__file__).parent
CLUSTER = "dHhwb29sLWV4YW1wbGUtMQ"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def listens(port):
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            # The system may choose that very port for this end: then it is connected with itself.
            return connection.getsockname() != connection.getpeername()
    except OSError:
        return False


def start_broker(folder, port):
    """A broker of one node, out of Maven."""
    jars = folder / "classpath"
    maven = ["mvn", "-q", "-B", "-f", HERE / "pom.xml", "dependency:build-classpath", f"-Dmdep.outputFile={jars}"]
    subprocess.run(maven, check=True, stdout=sys.stderr)
    controller = free_port()
    (folder / "server.properties").write_text(f"""
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={folder}/logs
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
""")
    java = ["java", "-Xmx512m", "-cp", jars.read_text()]
    with (folder / "broker.log").open("ab") as log:
        said = {"stdout": log, "stderr": log}
        format_disk = ["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", folder / "server.properties"]
        subprocess.run([*java, *format_disk], check=True, **said)
        broker = subprocess.Popen([*java, "kafka.Kafka", folder / "server.properties"], **said)
    while not listens(port):
        if broker.poll() is not None:
            raise SystemExit((folder / "broker.log").read_text())
        time.sleep(0.1)
    return broker


def main():
    port = free_port()
    broker = start_broker(Path.cwd(), port)
    try:
        shop(port)
    finally:
        broker.kill()
        broker.wait()


def shop(port):
    for topic in ("orders", "shipped"):
        Path(f"{topic}.properties").write_text(
            f"driver = kafka\nurl = kafka://127.0.0.1:{port}\ntopic = {topic}\ngroup = {topic}\nparking.after = 1\n"
            "offsets.datasource = store.properties\nprepared.owners = any\n"
        )
    Path("store.properties").write_text("driver = sqlite3\nmode = cmr\nurl = sqlite:///store.db\n")
    with sqlite3.connect("store.db") as connection:
        connection.execute("create table orders (number text, amount text)")
        connection.execute("create table shipped (amount text)")
    connection.close()
    txpool.configure(node_name="shop-1", log_url="sqlite:///txlog", log_create=True)
    store = txpool.DataSource.from_properties("store.properties")
    store.xids_table().create()
    store.close()

    with closing(KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{port}")) as admin:
        admin.create_topics([NewTopic("orders", 1, 1), NewTopic("shipped", 1, 1)])
    orders, shipped = txpool.session("orders.properties"), txpool.session("shipped.properties")
    for number, amount in enumerate(("9", "20", "much", "7"), 1):
        orders.send(amount, key=str(number))

    @txpool.consumer(orders)
    def ship(messages):
        with txpool.connect("store.properties") as store:
            for message in messages:
                store.execute("insert into orders values (?, ?)", [message.key, message.text])
                shipped.send(message.body, key=message.key)
                int(message.text)
                print("order", message.key, "is stored and shipped")

    ship.run(lambda: orders.parked()[0] == 1 and len(rows("orders")) == 3)
    print("rows", rows("orders"))
    arrived = []
    while len(arrived) < 3:
        with txpool.transaction(), txpool.connect("store.properties") as store:
            for message in shipped.receive(10, timeout=60):
                store.execute("insert into shipped values (?)", [message.text])
                arrived.append(message.text)
    print("shipped", arrived)
    print(orders.parked()[0], "parked")
    orders.close()
    shipped.close()
    shipped.datasource.close()


def rows(table):
    with closing(sqlite3.connect("store.db")) as store:
        return store.execute(f"select * from {table}").fetchall()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        main()

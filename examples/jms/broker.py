"""An ActiveMQ Artemis in this process, until it is killed. Arguments: its class path, its file."""

import sys
import time

import jpype

jpype.startJVM("-Xrs", "-Xmx256m", classpath=sys.argv[1].split(":"))
server = jpype.JClass("org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ")()
server.setConfigResourcePath(f"file:{sys.argv[2]}").start()
print("started", flush=True)
while True:
    time.sleep(60)

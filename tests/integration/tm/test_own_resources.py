"""Resources of a user's own in transactions: what is refused, votes to roll back, what is left to recovery."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib import invalidate_caches
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import txpool
from recovery import RecoveryManager
from tests.support.outbox import Message, Outbox, ProvenOutbox
from txpool import failpoints
from txpool.check import check
from txpool.config.settings import DataSourceSettings
from txpool.conformance.case import Verdict
from txpool.conformance.kit import CASES, run_cases
from txpool.resource import Refused, find
from txpool.tm import manager as managers


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "txpool.properties"
    path.write_text(f"node.name = own\nlog.url = sqlite:///{tmp_path}/txlog\nlog.create = true\n")
    txpool.configure(path)
    yield path
    failpoints.disarm()
    txpool.configure()


@pytest.fixture
def outbox(tmp_path: Path) -> Any:
    (tmp_path / "outbox").mkdir()
    return Outbox("outbox", tmp_path / "outbox")


@pytest.fixture
def second(tmp_path: Path) -> Any:
    (tmp_path / "others").mkdir()
    return Outbox("others", tmp_path / "others")


def sent(outbox: Any) -> list[str]:
    return sorted(each.read_text() for each in outbox.path.iterdir() if each.name != ".txpool")


def left(outbox: Any) -> list[str]:
    """What is prepared, of any name, and what was left behind."""
    return sorted(set(outbox.prepared()) - {"identity", "generation"})


def file_of(outbox: Any, log: Path, driver: str = "tests.support.outbox:Outbox") -> Path:
    path = log.parent / f"{outbox.name}.properties"
    path.write_text(f"name = {outbox.name}\ndriver = {driver}\nurl = file:{outbox.path.name}\n")
    return path


def recover(log: Path, *paths: Path) -> RecoveryManager:
    path = log.parent / "recovery.properties"
    path.write_text(f"{log.read_text()}datasources = {', '.join(each.name for each in paths)}\nrecovery.backoff = 0\n")
    manager = RecoveryManager(path)
    manager.scan()
    return manager


def gone() -> None:
    """This process's incarnation has ended, as far as recovery can see."""
    txpool.configure()
    gc.collect()


def test_two_resources_commit_together(log: Path, outbox: Any, second: Any) -> None:
    with txpool.transaction() as tx:
        work = tx.enlist(outbox)
        assert tx.enlist(outbox) is work
        work.write(b"one")
        tx.enlist(second).write(b"two")
        assert (sent(outbox), sent(second)) == ([], [])
    assert (sent(outbox), sent(second), left(outbox), left(second)) == (["one"], ["two"], [], [])


def test_an_exception_leaves_nothing(log: Path, outbox: Any, second: Any) -> None:
    with pytest.raises(ValueError), txpool.transaction() as tx:
        tx.enlist(outbox).write(b"one")
        tx.enlist(second).write(b"two")
        raise ValueError
    assert (sent(outbox), sent(second), left(outbox), left(second)) == ([], [], [], [])


def test_one_alone_commits(log: Path, outbox: Any) -> None:
    with txpool.transaction() as tx:
        tx.enlist(outbox).write(b"one")
    assert (sent(outbox), left(outbox)) == (["one"], [])


def test_one_that_did_nothing_takes_no_part(log: Path, outbox: Any, second: Any) -> None:
    with txpool.transaction() as tx:
        tx.enlist(outbox)
        tx.enlist(second).write(b"two")
    assert (sent(outbox), sent(second), left(outbox)) == ([], ["two"], [])


def test_a_vote_to_roll_back(log: Path, outbox: Any, second: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(file: Path, _: bytes) -> None:
        raise FileExistsError(file)

    monkeypatch.setitem(Message.prepare.__globals__, "create_file", taken)
    with pytest.raises(txpool.TransactionRolledBack, match="prepared already"), txpool.transaction() as tx:
        tx.enlist(outbox).write(b"one")
        tx.enlist(second).write(b"two")
    assert (sent(outbox), sent(second), left(outbox), left(second)) == ([], [], [], [])


def test_without_a_log_nothing_is_prepared(outbox: Any) -> None:
    with txpool.transaction() as tx, pytest.raises(txpool.ProgrammingError, match="needs a decision log"):
        tx.enlist(outbox)


def test_what_is_no_resource_is_refused(log: Path, outbox: Any, tmp_path: Path) -> None:
    database = txpool.DataSource(name="outbox", driver="sqlite3", mode="cmr", url=f"sqlite:///{tmp_path}/outbox.db")
    with txpool.transaction() as tx:
        with pytest.raises(txpool.ProgrammingError, match=r"no txpool\.resource\.Resource"):
            tx.enlist(database)
        tx.enlist(outbox)
        with pytest.raises(txpool.ProgrammingError, match="another resource"):
            tx.enlist(Outbox("outbox", tmp_path))
        with pytest.raises(txpool.ProgrammingError, match="two datasources are called outbox"):
            database.connect()
    with (
        txpool.transaction(isolation="serializable") as tx,
        pytest.raises(txpool.ProgrammingError, match="serializable"),
    ):
        tx.enlist(outbox)
    database.close()


@pytest.mark.parametrize("name", ["my outbox", "a:b", "", "x" * 33, "rapports-été"])
def test_a_name_that_no_branch_may_have_is_refused(name: str, log: Path, outbox: Any) -> None:
    with txpool.transaction() as tx, pytest.raises(txpool.ProgrammingError, match="1 to 32 of the characters"):
        tx.enlist(Outbox(name, outbox.path))


def test_a_module_that_was_corrected_is_tried_again(log: Path, outbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(log.parent))
    path = file_of(outbox, log, "corrected:Outbox")
    for text in ("raise RuntimeError", "Outbox = 7"):
        (log.parent / "corrected.py").write_text(text)
        invalidate_caches()
        sys.modules.pop("corrected", None)
        with pytest.raises(txpool.ConfigurationError, match="corrected:Outbox"):
            find(path)
    (log.parent / "corrected.py").write_text("from tests.support.outbox import Outbox  # corrected")
    invalidate_caches()
    del sys.modules["corrected"]
    assert find(path).identity() == outbox.identity()


def test_it_is_checked(log: Path, outbox: Any) -> None:
    path = file_of(outbox, log)
    path.chmod(0o600)
    (section,) = check(path).sections
    assert [each.severity.value for each in section.findings] == ["ok", "ok"]
    assert outbox.identity() in section.findings[1].found
    outbox.path.rename(outbox.path.with_name("elsewhere"))
    (section,) = check(path).sections
    assert [each.topic for each in section.findings if each.severity.value == "wrong"] == ["connection"]


def test_work_after_the_end_is_refused(log: Path, outbox: Any) -> None:
    with txpool.transaction() as tx:
        work = tx.enlist(outbox)
        work.write(b"one")
    with pytest.raises(txpool.ProgrammingError, match="has ended"):
        work.write(b"late")
    with pytest.raises(txpool.ProgrammingError, match="has ended"):
        tx.enlist(outbox)
    with pytest.raises(txpool.TransactionTimeout), txpool.transaction(timeout=0.05) as tx:
        work = tx.enlist(outbox)
        work.write(b"two")
        time.sleep(0.2)
        work.write(b"late")
    assert (sent(outbox), left(outbox)) == (["one"], [])


def test_a_dropped_transaction_rolls_back(log: Path, outbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    undone = Event()
    monkeypatch.setattr(Message, "rollback", lambda _: undone.set())

    def begun() -> Any:
        tx = managers.get_manager().new_transaction()
        work = tx.enlist(outbox)
        work.write(b"one")
        return work

    work = begun()
    assert undone.wait(10)
    assert (sent(outbox), left(outbox)) == ([], [])
    with pytest.raises(txpool.ProgrammingError):
        work.write(b"late")


@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_prepare_without_an_answer(
    when: str, error: BaseException, log: Path, outbox: Any, second: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = Message.prepare

    def failing(work: Any, xid: str) -> None:
        if work.hidden.parent == second.path:
            if when == "after":
                prepare(work, xid)
            raise error
        prepare(work, xid)

    monkeypatch.setattr(Message, "prepare", failing)
    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else txpool.TransactionRolledBack
    with pytest.raises(expected), txpool.transaction() as tx:
        tx.enlist(outbox).write(b"one")
        tx.enlist(second).write(b"two")
    assert (sent(outbox), sent(second), left(outbox), left(second)) == ([], [], [], [])


@pytest.mark.parametrize("error", [OSError("stale handle"), KeyboardInterrupt()])
def test_what_a_commit_leaves_recovery_finishes(
    error: BaseException, log: Path, outbox: Any, second: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = file_of(outbox, log), file_of(second, log)

    def failing(xid: str) -> bool:
        raise error

    monkeypatch.setattr(second, "commit", failing)
    interrupted = pytest.raises(KeyboardInterrupt) if isinstance(error, KeyboardInterrupt) else nullcontext()
    with interrupted, txpool.transaction() as tx:
        tx.enlist(outbox).write(b"one")
        tx.enlist(second).write(b"two")
    assert (sent(outbox), sent(second)) == (["one"], [])
    assert tx.status is txpool.Status.COMMITTED
    assert tx.unanswered == ["others"]
    recover(log, *paths)
    assert (sent(outbox), sent(second), left(second)) == (["one"], ["two"], [])


def test_a_person_who_rolls_back_is_seen(log: Path, outbox: Any, second: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent at the coordinator's own first COMMIT: rule 34."""
    commit = outbox.commit

    def after_somebody(xid: str) -> bool:
        assert outbox.rollback(xid)
        return bool(commit(xid))

    monkeypatch.setattr(outbox, "commit", after_somebody)
    with pytest.raises(txpool.HeuristicHazard), txpool.transaction() as tx:
        tx.enlist(outbox).write(b"one")
        tx.enlist(second).write(b"two")
    assert (sent(outbox), sent(second)) == ([], ["two"])


@pytest.mark.parametrize("restored", [False, True])
def test_a_commit_whose_answer_was_lost(
    restored: bool, log: Path, outbox: Any, second: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no hazard, unless the folder was restored from a copy since: rule 34."""
    paths = file_of(outbox, log), file_of(second, log)
    commit = outbox.commit

    def unheard(xid: str) -> bool:
        commit(xid)
        raise OSError("no answer")

    monkeypatch.setattr(outbox, "commit", unheard)
    with txpool.transaction() as tx:
        tx.enlist(outbox).write(b"one")
        tx.enlist(second).write(b"two")
    assert tx.unanswered == ["outbox"]
    if restored:
        generation = outbox.hidden / "generation"
        generation.rename(outbox.path.with_name("former"))
        generation.touch()
    recover(log, *paths)
    assert (sent(outbox), sent(second), left(outbox)) == (["one"], ["two"], [])
    assert [each.ended for each in managers.get_manager().log.heuristics()] == (["lost"] if restored else [])


def test_recovery_rolls_back_what_nobody_decided(log: Path, outbox: Any, second: Any) -> None:
    paths = file_of(outbox, log), file_of(second, log)
    outbox.identity()
    for name in ("another-product-7", "0123456789abcdef.new"):  # the second is what a crash within PREPARE leaves
        (outbox.hidden / name).touch()
    with failpoints.arming("log.record", "raise"), pytest.raises(txpool.TransactionError), txpool.transaction() as tx:
        tx.enlist(outbox).write(b"one")
        tx.enlist(second).write(b"two")
    gone()
    recover(log, *paths)
    assert (sent(outbox), sent(second), left(second)) == ([], [], [])
    assert left(outbox) == ["0123456789abcdef.new", "another-product-7"]


def alone_and_killed(log: Path, outbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies between the two steps of one that commits alone."""

    def dying(xid: str) -> bool:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(outbox, "commit", dying)
        with pytest.raises(SystemExit), txpool.transaction() as tx:
            tx.enlist(outbox).write(b"one")
    gone()


def test_one_alone_is_recovered(log: Path, outbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    alone_and_killed(log, outbox, monkeypatch)
    assert len(left(outbox)) == 1
    recover(log, file_of(outbox, log))
    assert (sent(outbox), left(outbox)) == ([], [])


def test_recovery_finds_the_file_by_the_note(
    log: Path, outbox: Any, second: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own configuration does not name it: rule 33."""
    alone_and_killed(log, find(file_of(outbox, log)), monkeypatch)
    assert len(left(outbox)) == 1
    recover(log, file_of(second, log))
    assert (sent(outbox), left(outbox)) == ([], [])


def test_a_file_that_others_can_write_runs_no_code(log: Path, outbox: Any, tmp_path: Path) -> None:
    (tmp_path / "trap.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w').close()\nraise RuntimeError\n")
    path = file_of(outbox, log, "trap:Trap")
    path.chmod(0o666)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        for load in (DataSourceSettings.load, find, txpool.connect):
            with pytest.raises(txpool.ConfigurationError, match="names code to run"):
                load(path)
        assert not (tmp_path / "sprung").exists()
        path.chmod(0o600)
        with pytest.raises(txpool.ConfigurationError, match=r"trap:Trap.*RuntimeError"):
            find(path)


@pytest.mark.parametrize(
    ("driver", "says"),
    [
        ("tests.support.outbox:Nothing", "no attribute 'Nothing'"),
        ("tests.support.outbox:Message", "neither a txpool.resource.Resource nor a ResourceManager"),
        ("no_such_module_here:Outbox", "No module named"),
        ("tests.support.outbox.Outbox", "is not one of them"),
    ],
)
def test_a_driver_that_leads_nowhere(driver: str, says: str, log: Path, outbox: Any) -> None:
    with pytest.raises(txpool.ConfigurationError, match=says):
        find(file_of(outbox, log, driver))


def test_a_file_leads_to_one_resource(log: Path, outbox: Any, tmp_path: Path) -> None:
    path = file_of(outbox, log)
    resource = find(path)
    assert find(path) is resource
    assert (resource.path, resource.identity(), resource.file) == (outbox.path, outbox.identity(), str(path))
    with txpool.transaction(), pytest.raises(txpool.NotSupportedError, match="has no connections"):
        txpool.connect(path)
    path.chmod(0o600)
    path.write_text("driver = tests.support.outbox:Outbox\nurl = file://me:secret@host/x\n")
    with pytest.raises(txpool.ConfigurationError) as refused:
        DataSourceSettings.load(path)
    assert "secret" not in str(refused.value)
    path.write_text("driver = tests.support.outbox:Outbox\nurl = s3://bucket\n")
    with pytest.raises(txpool.ConfigurationError, match="write file:/srv/folder"):
        DataSourceSettings.load(path)
    path.write_text("driver = tests.support.outbox:Outbox\nmode = cmr\nurl = file:outbox\n")
    with pytest.raises(txpool.ConfigurationError, match="mode"):
        DataSourceSettings.load(path)


class Talkative(Outbox):  # type: ignore[misc]
    def __init__(self, name: str, path: str, password: str) -> None:
        super().__init__(name, path)
        raise ConnectionError(f"cannot log in with {password}")


def test_an_error_of_its_making_shows_no_secret(log: Path, outbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by its text, nor by the error that is its cause."""
    monkeypatch.setenv("OUTBOX_PASSWORD", "tell-nobody")
    path = file_of(outbox, log, f"{__name__}:Talkative")
    path.write_text(f"{path.read_text()}password = ${{env:OUTBOX_PASSWORD}}\n")
    with pytest.raises(txpool.ConfigurationError, match=r"cannot be made: ConnectionError: cannot log in") as caught:
        find(path)
    assert "tell-nobody" not in f"{caught.value} {caught.value.__cause__}"


class Agreeable(ProvenOutbox):  # type: ignore[misc]
    """Whatever is asked for has happened."""

    def commit(self, xid: str) -> bool:
        super().commit(xid)
        return True


class Forgetful(ProvenOutbox):  # type: ignore[misc]
    """What is prepared is known to the object that prepared it."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(name, path)
        self.known: set[str] = set()

    def prepared(self) -> set[str]:
        return self.known


class Careless(ProvenOutbox):  # type: ignore[misc]
    """A name that is taken is an error like any other, so that what has it is rolled back."""

    def begin(self) -> Any:
        work = super().begin()
        prepare: Callable[[str], None] = work.prepare

        def careless(xid: str) -> None:
            try:
                prepare(xid)
            except Refused as error:
                raise OSError(str(error)) from error

        work.prepare = careless
        return work


class Anywhere(ProvenOutbox):  # type: ignore[misc]
    """Each object has an identity of its own."""

    def identity(self) -> str:
        return f"{super().identity()}/{id(self)}"


@pytest.mark.parametrize(
    ("kind", "case", "says"),
    [
        (Agreeable, "unknown-xid", "was never prepared was answered 'committed'"),
        (Forgetful, "listing", "are listed"),
        (Careless, "duplicate-xid", "ended another's branch"),
        (Anywhere, "listing", "recovery would not look"),
    ],
)
def test_the_kit_finds_what_is_wrong_with_one(kind: type, case: str, says: str, log: Path, outbox: Any) -> None:
    file = file_of(outbox, log, f"{__name__}:{kind.__name__}")
    found = run_cases(DataSourceSettings.load(file), cases=[each for each in CASES if each.name == case], patience=1)
    (result,) = found.results
    assert (result.verdict, says in result.reason) == (Verdict.FAILED, True), found


def test_the_kit_must_know_what_to_write(log: Path, outbox: Any) -> None:
    assert "has no workload()" in run_cases(DataSourceSettings.load(file_of(outbox, log))).trouble

"""Credentials of a function, and of one connect(): who logs in, and that what they are never shows."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import txpool
from tests.support.strangers import Strangers
from txpool.config.secrets import Secret
from txpool.config.settings import DataSourceSettings
from txpool.datasource import DataSource
from txpool.errors import ConfigurationError
from txpool.resources.base import BranchOutcome, BranchRecord
from txpool.tm.demarcation.block import transaction
from txpool.xid import make_gtrid, make_xid, new_incarnation

if TYPE_CHECKING:
    from tests.conftest import Databases
    from tests.integration.pool.conftest import OpenSource

TOKEN = "s3cr3t-t0k3n-0f-th3-v4ult"


def whoami(datasource: DataSource, **options: Any) -> str:
    with closing(datasource.connect(**options)) as connection:
        return str(connection.execute("select session_user").fetchone()[0])


class Vault:
    """Counts its calls, and gives what it is told to."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls = 0

    def __call__(self) -> Any:
        self.calls += 1
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def test_it_is_called_before_each_physical_connection(source: OpenSource, strangers: Strangers) -> None:
    vault = Vault(("app", strangers.password), ("mallory", Secret(strangers.password)))
    datasource = source(credentials=vault, pool_max_size=2)
    assert not vault.calls
    with closing(datasource.connect()) as one, closing(datasource.connect()) as two:
        assert one.execute("select session_user").fetchone() == ("app",)
        assert two.execute("select session_user").fetchone() == ("mallory",)
    for _ in range(3):
        datasource.connect().close()
    assert vault.calls == 2


def test_a_password_alone_is_of_the_configured_user(source: OpenSource, strangers: Strangers) -> None:
    assert whoami(source(credentials=lambda: strangers.password, url=strangers.url())) == "app"
    assert whoami(source(credentials=lambda: strangers.password, user="mallory")) == "mallory"
    assert whoami(source(credentials=lambda: (None, strangers.password), user="mallory")) == "mallory"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "has returned a NoneType"),
        (b"bytes", "has returned a bytes"),
        (("app", TOKEN, 3), "has returned a tuple of 3"),
        ((3, TOKEN), "has returned a tuple of 2"),
        ({"user": TOKEN}, "has returned a dict"),
    ],
)
def test_another_answer_is_refused_without_showing_it(source: OpenSource, answer: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"datasource one: credentials {said}: return a password") as caught:
        source(credentials=Vault(answer)).connect()
    assert TOKEN not in "".join(traceback.format_exception(caught.value))


def test_its_own_error_is_said_with_the_datasource(source: OpenSource) -> None:
    with pytest.raises(
        txpool.OperationalError, match="datasource one: credentials failed with ValueError: it is sealed"
    ):
        source(credentials=Vault(ValueError("it is sealed"))).connect()
    with pytest.raises(KeyboardInterrupt):
        source(credentials=Vault(KeyboardInterrupt())).connect()


def test_a_password_that_was_returned_shows_nowhere(
    source: OpenSource, caplog: pytest.LogCaptureFixture, databases: Databases
) -> None:
    datasource = source(credentials=Vault(TOKEN, RuntimeError(f"{TOKEN} has expired"), ("app", TOKEN)))
    with caplog.at_level(logging.DEBUG), pytest.raises(txpool.Error) as first:
        datasource.connect()
    with caplog.at_level(logging.DEBUG), pytest.raises(txpool.Error) as second:
        datasource.connect()
    shown = [*map(repr, (datasource, datasource.settings, datasource.settings.issuer, datasource.statistics()))]
    shown += ["".join(traceback.format_exception(each.value)) for each in (first, second)]
    shown += [caplog.text, str(datasource.settings.secrets)]
    for text in shown:
        assert TOKEN not in text
        assert "t0k3n-0f" not in text


def test_the_function_runs_outside_the_transaction(source: OpenSource, databases: Databases) -> None:
    seen = []

    def vault() -> str:
        seen.append((txpool.current(), threading.current_thread()))
        return databases.server.password

    with transaction():
        source(credentials=vault).connect().execute("insert into t values (1)")
    assert seen == [(None, threading.current_thread())]
    assert databases.rows("one", "select id from t") == [(1,)]


# -- named by a file ------------------------------------------------------------------------------------------------


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module whose function `token` gives the password of the variable VAULT."""
    (tmp_path / "vault_of_tests.py").write_text("import os\ndef token():\n    return os.environ['VAULT']\nnone = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "vault_of_tests"
    sys.modules.pop("vault_of_tests", None)


Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, databases: Databases) -> Write:
    def write(credentials: str) -> Path:
        file = tmp_path / "orders.properties"
        file.write_text(f"driver = psycopg\nurl = {databases.url('one')}\ncredentials = {credentials}\n")
        return file

    return write


def test_a_file_names_it(module: str, write: Write, databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAULT", databases.server.password)
    with DataSource.from_properties(write(f"{module}:token")) as datasource:
        assert whoami(datasource) == databases.server.user
        # By its name it travels to another process; whoever reads it there loads it there.
        text = pickle.dumps(datasource)
    assert databases.server.password.encode() not in text
    program = "import pickle, sys; it = pickle.loads(sys.stdin.buffer.read()); c = it.connect(); print(c.info.user)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], input=text, env=environment, capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == databases.server.user


def test_a_file_that_others_may_write_is_refused(module: str, write: Write) -> None:
    file = write(f"{module}:token")
    file.chmod(0o666)
    with pytest.raises(ConfigurationError, match="is not used, since it names code to run and is not safe"):
        DataSourceSettings.load(file)


def test_an_executor_without_the_file_takes_the_drivers_word(write: Write) -> None:
    """The driver has checked its file; on the executor there is none to check."""
    file = write("vault:token")
    sent = DataSourceSettings.load(file).serialized()
    file.unlink()
    assert DataSourceSettings.from_serialized(sent).credentials == "vault:token"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("vault_of_tests:nobody", "credentials cannot be loaded: the module has no such function"),
        ("no_such_module:token", "credentials cannot be loaded .ModuleNotFoundError"),
        ("vault_of_tests:none", "credentials = vault_of_tests:none is a int, and no function"),
    ],
)
def test_a_name_that_leads_nowhere(module: str, write: Write, name: str, said: str) -> None:
    with (
        DataSource.from_properties(write(name)) as datasource,
        pytest.raises(ConfigurationError, match=f"datasource orders: {said}"),
    ):
        datasource.connect()


@pytest.mark.parametrize("user", ["app", "a_name_of_no_module"])
def test_a_user_and_a_password_in_its_place_are_not_shown(
    write: Write, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have the form of module:function."""
    monkeypatch.setitem(sys.modules, "app", ModuleType("app"))
    settings = DataSourceSettings.load(write(f"{user}:hunter2"))
    with DataSource.from_settings(settings) as datasource, pytest.raises(ConfigurationError) as caught:
        datasource.connect()
    shown = [repr(settings), repr(settings.issuer), *traceback.format_exception(caught.value)]
    assert "hunter2" not in "".join(shown)
    assert "ame package.module:function" in shown[-1]


@pytest.mark.parametrize("name", ["vault.token", "vault:", ":token", "os:system('x')", "a b:c", "vault:token:x"])
def test_a_name_of_another_form_is_refused(write: Write, name: str) -> None:
    file = write(name)
    file.chmod(0o600)
    with pytest.raises(
        ConfigurationError, match=r"write a module and its function, package\.module:function"
    ) as caught:
        DataSourceSettings.load(file)
    assert name not in str(caught.value), "it may be a password"


def test_beside_a_password_or_where_there_are_no_users(write: Write, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="password is given beside credentials, which supplies it"):
        DataSourceSettings.load(write("vault:token"), password=Secret("x"))
    with pytest.raises(ConfigurationError, match="has no use: sqlite3 knows no users"):
        DataSourceSettings.load(
            name="x", driver="sqlite3", mode="local", url=f"sqlite:///{tmp_path}/x.db", credentials="vault:token"
        )


def test_a_function_given_in_code_cannot_travel(source: OpenSource, databases: Databases) -> None:
    datasource = source(credentials=lambda: databases.server.password)
    with pytest.raises(ConfigurationError, match=r"given in code, which cannot travel .*package\.module:function"):
        pickle.dumps(datasource)
    with pytest.raises(ConfigurationError, match="a function given in code"):
        pickle.dumps(datasource.settings)


def test_recovery_has_them_too(source: OpenSource, databases: Databases) -> None:
    vault = Vault(databases.server.password)
    assert source(credentials=vault).branch_recovery().identity()
    assert vault.calls == 1


def test_a_branch_of_one_user_is_ended_by_the_next(source: OpenSource, strangers: Strangers) -> None:
    """What rotates are members of one role, which they take on, and which prepared.owners names."""
    strangers.admin("drop role if exists rotating", "create role rotating", "grant rotating to app, mallory")
    strangers.admin("grant all on t to rotating")
    vault = Vault(("app", strangers.password), ("mallory", strangers.password))
    datasource = source(credentials=vault, pool_initial_sql="set role rotating", prepared_owners="rotating")
    name = make_xid(make_gtrid("tests", new_incarnation(), 1), 0, "one").joined
    with closing(datasource.connect()) as connection:
        assert connection.execute("select session_user").fetchone() == ("app",)
        connection.execute("insert into t values (1)")
        connection.execute(f"prepare transaction '{name}'")
    recovery = datasource.branch_recovery()
    (branch,) = recovery.recover()
    assert vault.calls == 2
    assert branch.owner == "rotating"
    assert branch.prepared_by(recovery.logins()), "mallory, who logs in now, is trusted with it"
    assert recovery.commit(BranchRecord(branch.xid, "one")) is BranchOutcome.COMMITTED
    assert strangers.databases.rows("one", "select id from t") == [(1,)]
    datasource.close()
    strangers.admin("revoke all on t from rotating", "drop role rotating")


# -- of one connect() -----------------------------------------------------------------------------------------------


def test_one_connect_as_another_user_is_pooled_for_nobody(source: OpenSource, strangers: Strangers) -> None:
    datasource = source(pool_max_size=1, url=strangers.url())
    datasource.connect().close()
    assert whoami(datasource, user="mallory", password=strangers.password) == "mallory"
    assert whoami(datasource) == "app"
    with closing(txpool.connect(datasource, user="mallory", password=Secret(strangers.password))) as connection:
        assert connection.execute("select session_user").fetchone() == ("mallory",)
        with pytest.raises(txpool.PoolTimeout):
            datasource.connect(timeout=0.01)
    assert datasource.statistics().size == 0


def test_a_wrong_password_says_so_and_shows_none(source: OpenSource, strangers: Strangers) -> None:
    datasource = source(url=strangers.url())
    said = r"datasource one .*connect\(user='mallory'\).*password auth"
    with pytest.raises(psycopg.OperationalError, match=said) as caught:
        datasource.connect(user="mallory", password=TOKEN)
    assert TOKEN not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(psycopg.OperationalError, match="password"):
        datasource.connect(user="mallory")  # the datasource's own password is not tried for another user
    assert whoami(datasource) == "app"
    assert datasource.statistics().failure is None


def test_inside_a_transaction_it_is_refused(source: OpenSource, strangers: Strangers, databases: Databases) -> None:
    datasource = source(url=strangers.url())
    connection = datasource.connect(user="mallory", password=strangers.password)
    with transaction() as tx:
        with pytest.raises(txpool.ProgrammingError, match=f"inside {tx.gtrid}.*a datasource of its own"):
            datasource.connect(user="mallory", password=strangers.password)
        with pytest.raises(txpool.ProgrammingError, match=f"cannot join {tx.gtrid}.*connect.user=….*Nothing was done"):
            connection.execute("select 1")
        datasource.connect().execute("select 1")
    assert connection.execute("select session_user").fetchone() == ("mallory",), "it is as it was"
    connection.close()


def test_a_database_without_users(tmp_path: Path) -> None:
    with (
        DataSource(name="lite", driver="sqlite3", mode="local", url=f"sqlite:///{tmp_path}/one.db") as datasource,
        pytest.raises(ConfigurationError, match="datasource lite: SQLite knows no users"),
    ):
        datasource.connect(user="app")

"""PostgreSQL and MariaDB, or MySQL 8, in one block of Django's, over each driver: what each server's client reads."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.core.cache import caches
from django.core.management import call_command
from django.db import DataError, Error, IntegrityError, connection, connections, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext, override_settings

import txpool
from tests.integration.django.conftest import Shop
from tests.support.recovery_site import Site
from txpool import failpoints
from txpool.config.settings import DataSourceSettings
from txpool.django import sources
from txpool.django.mysql import wrapper_over

if TYPE_CHECKING:
    from tests.conftest import Require
    from tests.support.mysql import MySQLServer, RequireDriver

PASSWORD = "TXPOOL_TEST_DJANGO_MARIADB"


@pytest.fixture(params=["mariadb", "mysql8"])
def server(request: pytest.FixtureRequest) -> MySQLServer:
    found: MySQLServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["pymysql", "mysqlclient"])
def mixed(
    request: pytest.FixtureRequest,
    site: Site,
    server: MySQLServer,
    make_shop: Callable[..., Shop],
    require_driver: RequireDriver,
    monkeypatch: pytest.MonkeyPatch,
) -> Shop:
    require_driver(request.param)
    monkeypatch.setenv(PASSWORD, server.password)
    server.execute("drop database if exists shop", "create database shop")
    site.write("shop", f"driver = {request.param}\nurl = {server.url('shop')}\npassword = ${{env:{PASSWORD}}}")
    names = {"one": "default", "shop": "shop"}
    return make_shop(names, shop=lambda query: server.execute(query, database="shop"))


def test_both_or_none(mixed: Shop, server: MySQLServer) -> None:
    with transaction.atomic("shop"):
        mixed.add(1)
        assert mixed.all_numbers == [[], []]
    assert mixed.all_numbers == [[1], [1]]
    with pytest.raises(ZeroDivisionError), transaction.atomic(), transaction.atomic("shop"):
        mixed.add(2)
        raise ZeroDivisionError
    failpoints.arm("coordinator.prepared")
    with pytest.raises(txpool.TransactionRolledBack), transaction.atomic():
        mixed.add(3)
    assert mixed.all_numbers == [[1], [1]]
    assert server.execute("xa recover") == []


def test_a_later_block_is_undone_alone(mixed: Shop) -> None:
    with transaction.atomic():
        mixed.add(1)
        with pytest.raises(IntegrityError), transaction.atomic("shop"):
            mixed.add(2, "shop")
            mixed.add(1, "shop")
        mixed.add(3, "shop")
    assert mixed.all_numbers == [[1], [1, 3]]


def test_rows_that_an_update_does_not_change_are_counted(mixed: Shop) -> None:
    mixed.add(1, "shop")
    orders = mixed.models[0].objects.using("shop")
    assert orders.update(number=1) == 1
    with transaction.atomic("shop"):
        assert orders.update(number=1) == 1
        orders.get().save()
    assert mixed.numbers("shop") == [1]


def test_values_are_djangos(mixed: Shop) -> None:
    from shop.models import Value

    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)
    with connections["shop"].schema_editor() as editor:
        editor.create_model(Value)
    values: dict[str, Any] = {"at": datetime.time(1, 2), "moment": moment, "amount": "1.50", "data": {"a": [1]}}
    values["small"] = 3
    with transaction.atomic("shop"):
        Value.objects.using("shop").create(**values)
        with pytest.raises((IntegrityError, DataError)), transaction.atomic("shop"):
            Value.objects.using("shop").create(**values | {"small": -1})
    found = Value.objects.using("shop").annotate(now=Now()).get()
    assert (found.at, found.moment, str(found.amount), found.data) == (datetime.time(1, 2), moment, "1.50", {"a": [1]})
    assert found.now.tzinfo is not None


def test_a_change_of_the_schema_is_refused_inside(mixed: Shop) -> None:
    with transaction.atomic("shop"):
        mixed.add(1, "shop")
        with pytest.raises(Exception, match=r"(?i)create table|XAER_RMFAIL|implicit"):
            connections["shop"].cursor().execute("create table other (id int)")
        transaction.set_rollback(True, using="shop")
    assert mixed.numbers("shop") == []


def test_what_creates_and_comes_first_is_done_outside(mixed: Shop, server: MySQLServer) -> None:
    """It commits at once, as with Django's own engine; what follows is in the transaction."""
    shop = connections["shop"]
    for debug in (False, True):
        shop.force_debug_cursor = debug
        with pytest.raises(ZeroDivisionError), transaction.atomic("shop"):
            with shop.cursor() as cursor:
                cursor.execute("create table if not exists other (id int)")
                cursor.execute("create index at_id on other (id)")
                cursor.execute("insert into other values (1)")
                with pytest.raises(Exception, match=r"(?i)drop table|XAER_RMFAIL|implicit"):
                    cursor.execute("drop table other")
            raise ZeroDivisionError
        assert list(server.execute("select count(*) from other", database="shop")) == [(0,)]
        server.execute("drop table other", database="shop")
        with pytest.raises(Exception, match=r"(?i)create|XAER_RMFAIL|implicit"), transaction.atomic():
            mixed.add(1, "default")
            shop.cursor().execute("create table other (id int)")
        with pytest.raises(Exception, match=r"(?i)create|XAER_RMFAIL|implicit"), transaction.atomic("shop"):
            cursor = shop.cursor()
            txpool.connect(mixed.folder / "shop.properties").cursor().execute("select * from shop_order")
            cursor.execute("create table other (id int)")
    shop.force_debug_cursor = False
    assert mixed.all_numbers == [[], []]
    assert server.execute("show tables like 'other'", database="shop") == []


def test_what_removes_and_comes_first_is_refused(mixed: Shop, server: MySQLServer) -> None:
    """Outside, it would remove at once what the block that rolls back is to keep."""
    server.execute("create table other (id int)", database="shop")
    server.execute("insert into other values (1)", database="shop")
    for statement in ("truncate table other", "drop table other", "create or replace table other (n int)"):
        with pytest.raises(ZeroDivisionError), transaction.atomic("shop"):
            with pytest.raises((Error, txpool.Error)):
                connections["shop"].cursor().execute(statement)
            raise ZeroDivisionError
    assert list(server.execute("select id from other", database="shop")) == [(1,)]


@pytest.mark.parametrize("within", [False, True])
def test_the_cache_in_a_database(mixed: Shop, within: bool) -> None:
    class Router:
        def db_for_read(self, model: Any, **hints: Any) -> str:
            return "shop"

        db_for_write = db_for_read

        def allow_migrate(self, db: str, *args: Any, **hints: Any) -> bool:
            return db == "shop"

    backend = {"BACKEND": "django.core.cache.backends.db.DatabaseCache", "LOCATION": "kept"}
    with override_settings(CACHES={"default": backend}, DATABASE_ROUTERS=[Router()]):
        call_command("createcachetable", database="shop", verbosity=0)
        caches["default"].set("a", 1)
        with pytest.raises(ZeroDivisionError), transaction.atomic("shop" if within else "default"):
            mixed.add(1)
            caches["default"].set("a", 2)
            raise ZeroDivisionError
        assert caches["default"].get("a") == 1
    assert mixed.all_numbers == [[], []]


def test_it_reads_what_others_commit(mixed: Shop, server: MySQLServer) -> None:
    with transaction.atomic("shop"):
        assert not mixed.models[0].objects.using("shop").exists()
        server.execute("insert into shop_order (number) values (7)", database="shop")
        assert mixed.models[0].objects.using("shop").exists()


def test_queries_are_logged(mixed: Shop) -> None:
    with CaptureQueriesContext(connections["shop"]) as queries, transaction.atomic("shop"):
        mixed.add(1, "shop")
    assert [each["sql"].split()[0] for each in queries] == ["BEGIN", "INSERT", "COMMIT"]
    assert "1" in queries[1]["sql"]
    assert connection.vendor == "postgresql"


def test_a_session_that_counts_otherwise_is_refused(mixed: Shop) -> None:
    with transaction.atomic():
        txpool.connect(mixed.folder / "shop.properties").cursor().execute("select 1")
        with pytest.raises(transaction.TransactionManagementError, match=r"driver\.client_flag = 2"):
            mixed.add(1, "shop")
    with transaction.atomic():
        mixed.add(1, "shop")
        txpool.connect(mixed.folder / "shop.properties").cursor().execute("update shop_order set number = 2")
    assert mixed.numbers("shop") == [2]


def test_dbshell_and_copies_of_the_database(
    mixed: Shop, server: MySQLServer, require: Require, capfd: pytest.CaptureFixture[str]
) -> None:
    require(all(map(shutil.which, ("mysql", "mysqldump"))), "mysql, mysqldump: apt-get install mariadb-client")
    mixed.add(1, "shop")
    call_command("dbshell", "--", "-Ne", "select database(), number from shop_order", database="shop")
    assert capfd.readouterr().out.split() == ["shop", "1"]
    server.execute("drop database if exists shop_1")
    connections["shop"].creation.clone_test_db("1", verbosity=0)  # as for a process of `manage.py test --parallel`
    assert list(server.execute("select number from shop_order", database="shop_1")) == [(1,)]
    server.execute("drop database shop_1")


def test_dbshell_takes_the_socket_and_the_files_of_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them it would lead to another server of this machine, or send the password to any."""
    file = tmp_path / "shop.properties"
    file.write_text(
        "name = shop\ndriver = pymysql\nmode = xa\nurl = mysql://app@localhost/shop?unix_socket=/run/shop.sock\n"
        "password = secret\ndriver.ssl_ca = /etc/ca.pem\n"
    )
    file.chmod(0o600)
    monkeypatch.setitem(sources._loaded, "shop", DataSourceSettings.load(file))
    client = wrapper_over("pymysql").client_class
    arguments, environment = client.settings_to_cmd_args_env({"TXPOOL": "shop", "NAME": "shop"}, [])
    assert arguments == ["mysql", "--user=app", "--socket=/run/shop.sock", "--ssl-ca=/etc/ca.pem", "shop"]
    assert environment == {"MYSQL_PWD": "secret"}

"""A whole project in a folder: it migrates, its own tests run in databases of their own, and it serves requests."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.recovery_site import PASSWORD, Site
from tests.support.repository import ROOT

SETTINGS = """
    from pathlib import Path

    BASE_DIR = Path(__file__).parent
    SECRET_KEY = "of tests"
    INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "stock"]
    DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
    USE_TZ = True
    TXPOOL_CONF = BASE_DIR / "txpool.properties"
    DATABASES = {
        "default": {"ENGINE": "txpool.django", "NAME": "one.properties", "ATOMIC_REQUESTS": True},
        "two": {"ENGINE": "txpool.django", "NAME": "two.properties", "ATOMIC_REQUESTS": True},
        "ledger": {"ENGINE": "txpool.django", "NAME": "ledger.properties", "ATOMIC_REQUESTS": True},
    }
"""
MODELS = """
    from django.db import models


    class Item(models.Model):
        name = models.CharField(max_length=20, unique=True)
"""
MIGRATIONS = {
    "0001_initial": """
        from django.db import migrations, models

        class Migration(migrations.Migration):
            operations = [
                migrations.CreateModel("Item", [
                    ("id", models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                    ("name", models.CharField(max_length=10)),
                ]),
            ]
    """,
    "0002_more": """
        from django.db import migrations, models

        def fill(apps, editor):
            apps.get_model("stock", "Item").objects.using(editor.connection.alias).create(name="first")

        class Migration(migrations.Migration):
            dependencies = [("stock", "0001_initial")]
            operations = [
                migrations.RunPython(fill, migrations.RunPython.noop),
                migrations.AlterField("Item", "name", models.CharField(max_length=20, unique=True)),
                migrations.RunPython(lambda apps, editor: apps.get_model("stock", "Item").objects.using(
                    editor.connection.alias).all().delete(), migrations.RunPython.noop),
            ]
    """,
}
TESTS = """
    from django.db import connections, transaction
    from django.test import TestCase, TransactionTestCase
    from stock.models import Item

    EVERY = {"default", "two", "ledger"}


    def names():
        return [[item.name for item in Item.objects.using(alias).order_by("name")] for alias in connections]


    class Undone(TestCase):
        databases = EVERY

        @classmethod
        def setUpTestData(cls):
            for alias in connections:
                Item.objects.using(alias).create(name="base")

        def test_one(self):
            with transaction.atomic(durable=True), transaction.atomic("two"):
                Item.objects.using("two").create(name="one")
            self.assertEqual(names(), [["base"], ["base", "one"], ["base"]])

        def test_two(self):
            with self.captureOnCommitCallbacks(using="two", execute=True) as callbacks:
                with transaction.atomic():
                    transaction.on_commit(lambda: Item.objects.create(name="late"), using="two")
            self.assertEqual(len(callbacks), 1)
            self.assertEqual(names(), [["base", "late"], ["base"], ["base"]])

        def test_three(self):
            self.assertTrue(all("test" in str(connections[each].settings_dict["NAME"]) for each in connections))
            with self.assertRaises(ZeroDivisionError), transaction.atomic():
                Item.objects.using("ledger").create(name="gone")
                with transaction.atomic("ledger"):
                    raise ZeroDivisionError
            with self.assertNumQueries(1):
                Item.objects.count()


    class Committed(TransactionTestCase):
        databases = EVERY

        def test_one(self):
            self.assertEqual(names(), [[], [], []])
            with transaction.atomic():
                for alias in connections:
                    Item.objects.using(alias).create(name="one")
            self.assertEqual(names(), [["one"], ["one"], ["one"]])

        test_two = test_one
"""


@pytest.fixture
def project(site: Site) -> Path:
    folder = site.folder / "project"
    files = {"settings": SETTINGS, "stock/models": MODELS, "stock/tests": TESTS}
    files |= {f"stock/migrations/{name}": text for name, text in MIGRATIONS.items()}
    files |= {"stock/__init__": "", "stock/migrations/__init__": ""}
    for name, text in files.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    for each in site.folder.glob("*.properties"):
        each.rename(folder / each.name)
    (folder / "ledger.properties").write_text("driver = sqlite3\nmode = cmr\nurl = sqlite:///../ledger.db\n")
    (site.folder / "txlog").rename(folder / "txlog")
    return folder


def manage(project: Path, *arguments: str, cwd: Path | None = None) -> str:
    environment: dict[str, Any] = os.environ | {
        "DJANGO_SETTINGS_MODULE": "settings",
        "PYTHONPATH": os.pathsep.join([str(project), str(ROOT)]),
        "PYTHONWARNINGS": "error",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    assert PASSWORD in environment
    done = subprocess.run(
        [sys.executable, "-m", "django", *arguments],
        cwd=cwd or project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.costly
def test_its_own_tests_run_in_databases_of_their_own(site: Site, project: Path) -> None:
    assert "Ran 5 tests" in manage(project, "test", "--noinput")
    with psycopg.connect(site.databases.dsn("one")) as connection:
        assert connection.execute("select datname from pg_database where datname like 'test%'").fetchall() == []
        assert connection.execute("select to_regclass('stock_item')").fetchone() == (None,)
    assert [*project.parent.glob("test*")] == []


@pytest.mark.costly
def test_it_migrates_each_database(site: Site, project: Path) -> None:
    for alias in ("default", "two", "ledger"):
        manage(project, "migrate", "--database", alias, cwd=project.parent)
    for name in ("one", "two"):
        assert site.databases.rows(name, "select count(*) from stock_item") == [(0,)]
        assert len(site.databases.rows(name, "select * from django_migrations where app = 'stock'")) == 2
    manage(project, "flush", "--noinput", "--database", "two")
    assert "No changes" in manage(project, "makemigrations", "--check", "--dry-run")

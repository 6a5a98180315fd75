"""Inside the process of Django's tests: their settings, and a runner that writes what came of each test."""

from __future__ import annotations

import json
import os
import unittest
from pathlib import Path
from typing import Any

import txpool_outcomes
from django.test.runner import DiscoverRunner

_DATABASE: dict[str, Any] = json.loads(os.environ["TXPOOL_SUITE"])["database"]


def _named(name: str) -> dict[str, Any]:
    settings = {key: value for key, value in _DATABASE.items() if key != "SUFFIX"}
    named = settings["NAME"] + name
    if "SUFFIX" not in _DATABASE:
        return settings | {"NAME": named, "TEST": {"NAME": named}}
    # The database of the datasource: of SQLite, the file beside the datasource's.
    source = Path(f"{named}{_DATABASE['SUFFIX']}")
    if name and not source.exists():
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{named}.db", "TEST": {"NAME": f"{named}.db"}}
    database = f"{named}.db" if "sqlite3" in source.read_text() else source.stem
    return settings | {"NAME": str(source), "TEST": {"NAME": database}}


if "SUFFIX" in _DATABASE:
    TXPOOL_CONF = Path(_DATABASE["NAME"]).with_name("txpool.properties")
DATABASES = {"default": _named(""), "other": _named("_other")}
SECRET_KEY = "of tests"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = False
TEST_RUNNER = "txpool_django.Runner"


class Result(unittest.TextTestResult):
    """Notes the outcome of each test."""

    def _note(self, test: Any, outcome: str, error: Any = None) -> None:
        lines = str(error[1]).splitlines() if error else []
        how = f"{error[0].__name__}: {lines[0] if lines else ''}" if error else ""
        if outcome == "passed":
            txpool_outcomes.outcomes.setdefault(test.id(), (outcome, how))
        else:
            txpool_outcomes.outcomes[test.id()] = (outcome, how)

    def addSuccess(self, test: Any) -> None:
        super().addSuccess(test)
        self._note(test, "passed")

    def addError(self, test: Any, err: Any) -> None:
        super().addError(test, err)
        self._note(test, "error", err)

    def addFailure(self, test: Any, err: Any) -> None:
        super().addFailure(test, err)
        self._note(test, "failed", err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._note(test, "failed", err)

    def addSkip(self, test: Any, reason: str) -> None:
        super().addSkip(test, reason)
        self._note(test, "skipped")

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        super().addExpectedFailure(test, err)
        self._note(test, "skipped")

    def addUnexpectedSuccess(self, test: Any) -> None:
        super().addUnexpectedSuccess(test)
        self._note(test, "failed")


class Runner(DiscoverRunner):
    """Django's, without the tests that are left out."""

    def get_resultclass(self) -> Any:
        return Result

    def build_suite(self, *args: Any, **kwargs: Any) -> Any:
        suite = super().build_suite(*args, **kwargs)
        return unittest.TestSuite(test for test in suite if not txpool_outcomes.left_out(test.id()))

    def suite_result(self, suite: Any, result: Any, **kwargs: Any) -> Any:
        txpool_outcomes.write()
        return super().suite_result(suite, result, **kwargs)

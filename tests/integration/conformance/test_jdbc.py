"""The kit on H2, Derby, PostgreSQL and MariaDB over JDBC, and its table in the documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.conformance.test_cases import APPLY, Killed
from tests.support.jdbc_places import KINDS, JdbcPlaces
from txpool.conformance.cases.case import Verdict
from txpool.conformance.kit import run_cases

if TYPE_CHECKING:
    from txpool.conformance.server import KillableServer

#: H2 and Derby run in the client's own process: there is no server to kill.
EMBEDDED = ("h2", "derby")


@pytest.mark.slow
@pytest.mark.part(2, each=("mode",))
@pytest.mark.parametrize("mode", ["xa", "cmr"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_passes(jdbc_places: JdbcPlaces, request: pytest.FixtureRequest, kind: str, mode: str) -> None:
    server: KillableServer | None = None
    if kind not in EMBEDDED:
        fixture = "postgres" if kind == "postgresql" else "mariadb"
        server = Killed(request.getfixturevalue(fixture))
    found = run_cases(jdbc_places.settings(kind, mode), server=server)
    assert (found.trouble, found.left) == ("", ())
    failed = {each.case.name: each.reason for each in found.results if each.verdict is Verdict.FAILED}
    assert failed == {}
    passed = {each.case.name for each in found.results if each.verdict is Verdict.PASSED}
    assert passed == APPLY[mode] - (set() if server else {"killed-server"})

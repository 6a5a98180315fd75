"""A project of three databases, killed at each point of a commit: once recovery has come, all or none has the order."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.integration.django.conftest import readers_of
from tests.support.recovery_site import Site

PROGRAM = """
    import sys
    import django
    from django.conf import settings

    aliases = sys.argv[1:]
    settings.configure(
        DATABASES={alias: {"ENGINE": "txpool.django", "NAME": f"{alias}.properties"} for alias in aliases}
        | {"default": {"ENGINE": "txpool.django", "NAME": "one.properties"}},
        TXPOOL_CONF="txpool.properties",
    )
    django.setup()
    from django.db import connections, transaction

    with transaction.atomic(), transaction.atomic("two"):
        for alias in aliases:
            with connections[alias].cursor() as cursor:
                cursor.execute("insert into t values (%s)", [1])
    print("committed", flush=True)
"""
#: Each point, and whether a kill there comes after the decision.
IN_THE_LOG = {
    "coordinator.begin": False,
    "branch.prepare-sent": False,
    "coordinator.preparing": False,
    "coordinator.prepared": False,
    "log.record": False,
    "log.recorded": True,
    "coordinator.decided": True,
    "branch.commit-sent": True,
    "coordinator.committing": True,
    "coordinator.one-committed": True,
    "coordinator.committed": True,
}
IN_THE_MARK = {
    "marked.row": False,
    "coordinator.marked": False,
    "coordinator.prepared": False,
    "marked.commit": False,
    "marked.committed": True,
    "coordinator.committing": True,
}
CASES = [(["default", "two"], *each) for each in IN_THE_LOG.items()]
CASES += [(["default", "two", "ledger"], *each) for each in IN_THE_MARK.items()]


@pytest.mark.crash
@pytest.mark.parametrize(
    ("aliases", "point", "committed"), CASES, ids=[f"{'+'.join(aliases)}-{point}" for aliases, point, _ in CASES]
)
def test_all_or_none(site: Site, aliases: list[str], point: str, committed: bool) -> None:
    site.killed(PROGRAM, *aliases, failpoints=f"{point}=kill")
    with closing(site.manager()) as manager:
        manager.scan()
        manager.scan()
    expected = [(1,)] if committed else []
    readers = readers_of(site)
    names = ["one" if alias == "default" else alias for alias in aliases]
    assert {name: readers[name]("select id from t") for name in names} == dict.fromkeys(names, expected)
    assert site.databases.prepared() == []

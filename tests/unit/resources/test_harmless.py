"""What a PostgreSQL statement calls, by its text: an operator of the catalogue's leaves nothing in the session."""

from __future__ import annotations

import pytest

from txpool.resources.postgresql.statements.harmless import is_certain


@pytest.mark.parametrize(
    ("text", "certain"),
    [
        ("select 1 where a = 2", True),
        ("select 1 where a operator(pg_catalog.=) 2 and b operator(pg_catalog.<=) 3", True),
        ("select 1 where a operator(public.=) 2", False),
        ("select operator(2)", False),
        ("select operator(pg_catalog.set_config)", False),
        ("select f(a operator(pg_catalog.=) 2)", False),
    ],
)
def test_operators(text: str, certain: bool) -> None:
    assert is_certain(text) is certain

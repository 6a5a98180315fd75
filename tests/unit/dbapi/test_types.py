"""The type objects of a driver."""

from __future__ import annotations

from operator import eq, ne
from types import ModuleType

import pytest
from pymysql.constants import FIELD_TYPE

from txpool.resources.jdbc.dbapi import type_objects as jdbc
from txpool.resources.mysql import type_objects as mysql

TYPES = ("STRING", "BINARY", "NUMBER", "DATETIME")


@pytest.mark.parametrize("module", [jdbc, mysql])
def test_a_type_object_equals_its_codes_and_itself(module: ModuleType) -> None:
    for name in TYPES:
        kind = getattr(module, name)
        for same in (kind, frozenset(kind), *kind):
            assert eq(kind, same)
            assert eq(same, kind)
            assert not ne(kind, same)
        for code in kind:
            assert [other for other in TYPES if getattr(module, other) == code] == [name]
        for another in (None, -1, "", [1], {}, frozenset()):
            assert ne(kind, another)
            assert not eq(kind, another)


def test_every_code_of_mariadb_is_in_one_type_object() -> None:
    codes = {value for name, value in vars(FIELD_TYPE).items() if name.isupper()}
    in_none = {FIELD_TYPE.NULL, FIELD_TYPE.BIT, FIELD_TYPE.JSON, FIELD_TYPE.GEOMETRY}
    assert {code for name in TYPES for code in getattr(mysql, name)} == codes - in_none

"""A key has its four places; the failure names the one that is missing, and what to write there."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from txpool.config.keys import COORDINATOR_KEYS, DATASOURCE_KEYS, RECOVERY_KEYS, Key
from txpool.config.settings import CoordinatorSettings, DataSourceSettings, RecoverySettings
from txpool.config.settings.coordinator import CoordinatorSettings as _Coordinator

#: Where the keys are, where their settings are, and the fields there that are of no key.
PLACES = [
    pytest.param(DATASOURCE_KEYS, DataSourceSettings, {"driver_options", "properties", "issuer"}, id="datasource"),
    pytest.param(COORDINATOR_KEYS, CoordinatorSettings, {"properties"}, id="coordinator"),
    pytest.param(RECOVERY_KEYS, RecoverySettings, {each.name for each in fields(_Coordinator)}, id="recovery"),
]


@pytest.mark.parametrize(("keys", "settings", "others"), PLACES)
def test_a_key_is_a_field_of_its_settings(keys: tuple[Key, ...], settings: Any, others: set[str]) -> None:
    module = settings.__module__.replace(".", "/") + ".py"
    there = {each.name for each in fields(settings)} - others
    known = {key.word: key for key in keys}
    missing = [
        f"    {word}: …  # the type that Properties.{known[word].kind}() gives" for word in known if word not in there
    ]
    assert not missing, f"write into the class {settings.__name__} in {module}:\n" + "\n".join(missing)
    extra = there - known.keys()
    assert not extra, f"{extra} in {module} is of no key: write a Key for it in txpool/config/keys/"


def test_a_key_says_what_it_is_for_in_one_line() -> None:
    for key in DATASOURCE_KEYS + COORDINATOR_KEYS + RECOVERY_KEYS:
        assert key.doc.endswith("."), f"{key.name} in txpool/config/keys/: its fourth argument is a sentence for users"
        assert "\n" not in key.doc, f"{key.name} in txpool/config/keys/: its sentence stands in a table, on one line"

"""The blocks of docs/how-to/objects.md, with an object store behind them."""

from __future__ import annotations

import pytest

from tests.docs.blocks import read
from tests.docs.running import Machine
from tests.support.repository import ROOT
from tests.support.s3_server import object_store

PAGE = read(ROOT / "docs/how-to/objects.md")


@pytest.mark.costly
def test_the_page(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    with object_store() as store:
        store.client().create_bucket(Bucket="bucket")
        for name, value in (
            ("AWS_ENDPOINT_URL_S3", store.url),
            ("AWS_ACCESS_KEY_ID", "tests"),
            ("AWS_SECRET_ACCESS_KEY", "secret-of-tests"),
            ("AWS_DEFAULT_REGION", "us-east-1"),
        ):
            monkeypatch.setenv(name, value)
        machine.run(PAGE)
        names = [name for name in store.names("exports/") if "/.txpool/" not in name]
        assert names == [f"exports/orders/2026-11-27/{name}" for name in ("_SUCCESS", "part-0.csv", "part-1.bin")]
        assert store.uploads() == []

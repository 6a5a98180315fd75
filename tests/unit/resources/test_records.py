"""The text of a decision's branches: what is written is JSON, as former versions wrote it, and is read as it was."""

from __future__ import annotations

import json

import pytest

from txpool.resources.base import BranchRecord, decode, encode
from txpool.xid import Xid

GTRID = "txp1:etl-1:abcdefghijkl:1"
EVIDENCE: list[dict[str, str]] = [
    {},
    {"xid": "771"},
    {"xid": "none", "timeline": "3", "note": "O'Neil's \"invoice\" \\ 42\n", "": ""},
    {"note": "größer als 日本 \U0001f600", "traceparent": "00-ab-cd-01"},
    {"it's": "\x00\x7f\u2028"},
]


@pytest.mark.parametrize("count", range(len(EVIDENCE) + 1))
def test_branches_are_the_json_of_former_versions_whatever_their_text(count: int) -> None:
    records = [
        BranchRecord(Xid(GTRID, f"{number}:orders:L"), f"örders '{number}'\\", f'7412/"{number}', evidence)
        for number, evidence in enumerate(EVIDENCE[:count])
    ]
    rows = [[each.xid.bqual, each.datasource, each.identity, each.evidence] for each in records]
    text = encode(records)
    assert text == json.dumps(rows, separators=(",", ":"))
    assert decode(GTRID, text) == tuple(records)


def test_evidence_that_is_no_text_is_refused_before_anything_is_written() -> None:
    with pytest.raises(TypeError):
        encode([BranchRecord(Xid(GTRID, "1:orders:L"), "orders", evidence={"xid": 771})])  # type: ignore[dict-item]

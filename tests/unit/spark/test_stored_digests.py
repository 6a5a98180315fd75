"""The digests of recorded writes: a rerun by a later txpool compares its own with them."""

from __future__ import annotations

from txpool.spark.source import plan
from txpool.spark.types.columns import Layout
from txpool.spark.types.encoding import ColumnEncoding


def test_a_layout_has_the_digest_that_former_versions_have_recorded() -> None:
    encodings = ColumnEncoding("id", "int4", 23, False), ColumnEncoding("note", "text", 25, True)
    layout = Layout(("id", "note"), encodings, ("integer", "text[]"))
    digest = plan._digest(["orders", "append", "{}", plan._stored(layout)])
    assert digest == "53432873220cbdaacfa22ac40b726dc3d803a87f4610a66a7e0f11993c352c90"

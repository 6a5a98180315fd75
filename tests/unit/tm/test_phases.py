"""The names of phases that leave the process: dashboards and queries of traces go by them."""

from __future__ import annotations

from txpool.tm.background import statistics
from txpool.tm.commit.phase import Phase

EXPORTED = {
    "prepare",
    "one_phase",
    "decide",
    "establish",
    "commit",
    "rollback",
    "complete",
    "let_go",
    "in_doubt",
    "ended",
}


def test_the_labels_of_metrics_and_the_names_of_spans_stay() -> None:
    assert {phase.exported for phase in Phase} == EXPORTED
    assert set(statistics._LABELS.values()) == EXPORTED

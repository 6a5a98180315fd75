"""Each rule of the protocol that the tests leave out has its row on the page of the rules."""

from __future__ import annotations

import re

from tests.crash.mutations import MUTATIONS
from tests.support.repository import ROOT

PAGE = (ROOT / "docs" / "explanation" / "rules.md").read_text()


def test_every_numbered_rule_has_its_row() -> None:
    left_out = {int(number[0]) for each in MUTATIONS if (number := re.match(r"\d+", each.rule))}
    rows = [int(number) for number in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)]
    assert sorted(rows) == sorted(left_out)

"""A deprecated name still works, and its warning says since when, until when, and what to write."""

from __future__ import annotations

import re

import pytest

from tests.support.repository import ROOT
from txpool.deprecation import deprecated


def old_name() -> None:
    deprecated("old_name()", since="0.2", gone_in="0.3", instead="call new_name()")


def test_the_warning_points_to_the_line_that_uses_it() -> None:
    with pytest.warns(DeprecationWarning, match="old_name") as caught:
        old_name()
    (warning,) = caught
    assert warning.filename == __file__
    assert str(warning.message) == ("old_name() is deprecated since txpool 0.2, and goes in 0.3: call new_name()")


def test_nobody_else_warns_of_what_is_deprecated() -> None:
    files = [*ROOT.glob("txpool/**/*.py"), *ROOT.glob("recovery/**/*.py")]
    found = {path.name for path in files if re.search(r"\bDeprecationWarning\b", path.read_text(encoding="utf-8"))}
    assert found == {"deprecation.py"}

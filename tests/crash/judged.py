"""What the judge says of work that each leaves its own name in several places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.judge import history
from tests.judge.atomicity import torn
from tests.judge.history import Key


def require_atomic(told: Mapping[str, str], places: Mapping[str, Iterable[object]]) -> None:
    """Each is in all of these places, once, or in none, and as its caller was told; nobody else is there.

    Args:
        told: by name, what its caller was told: committed, rolled back, in doubt, or nothing.
        places: what each holds at the end.
    """
    lines = [history.begins(name, [(place, "") for place in places]) for name in told]
    lines += [history.ends(name, word, []) for name, word in told.items() if word != "nothing"]
    lists = {Key(place, ""): [str(each) for each in held] for place, held in places.items()}
    assert [*torn(history.attempts(lines), lists)] == []

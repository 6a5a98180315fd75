"""How the explorer comes to the violation of each mutation: choices, which are replayed faster than they are found."""

from __future__ import annotations

import json

from tests.crash.explorer.explore import Explorer
from tests.crash.mutating import Mutation, applied
from tests.crash.mutations import MUTATIONS
from tests.specification.tlc import FOLDER
from tests.specification.traces import Trace, recorded, shape_of

_FILE = FOLDER / "replays.json"
_LIMIT = 400_000


def replays() -> dict[str, str]:
    """The choices of each mutation that the explorer finds, by its rule."""
    return json.loads(_FILE.read_text())  # type: ignore[no-any-return]


def _explorer(mutation: Mutation) -> Explorer:
    assert mutation.scenario is not None
    return Explorer(mutation.scenario, frozenset({mutation.flaw} - {""}))


def of_mutation(mutation: Mutation, choices: str) -> Trace:
    """What the code without the rule does by these choices."""
    with applied(mutation.edits):
        explorer = _explorer(mutation)
        return shape_of(explorer), recorded(explorer, choices.split())


def write() -> None:
    """Search for each mutation's violation again."""
    found = {}
    for mutation in MUTATIONS:
        if mutation.scenario is not None:
            with applied(mutation.edits):
                found[mutation.rule] = " ".join(_explorer(mutation).search(_LIMIT, mutation.found).choices)
    _FILE.write_text(json.dumps(found, indent=1) + "\n")

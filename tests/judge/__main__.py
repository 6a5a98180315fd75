"""`python -m tests.judge HISTORY LISTS [LEVEL]` prints what is wrong, and then ends with 1."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.judge.atomicity import torn
from tests.judge.consistency import Level, anomalies
from tests.judge.history import Key, attempts


def verdict(history: Path, lists: Path, level: Level) -> list[str]:
    """What is wrong with a history and the lists that databases hold after it, a sentence each.

    Args:
        history: the file of what callers did and were told.
        lists: a file of JSON: by database, by key, the list's values in their order.
        level: what the transactions' isolation promised in each database.
    """
    with history.open() as lines:
        found = attempts(lines)
    databases = json.loads(lists.read_text())
    held = {Key(database, key): values for database, keys in databases.items() for key, values in keys.items()}
    wrong = [] if found else ["the history has no transaction"]
    wrong += torn(found, held)
    read = {each.key.database for attempt in found.values() for each in attempt.reads}
    for database in sorted({*databases, *read}):
        wrong += [f"{database}: {each}" for each in anomalies(found, held, database, level)]
    return wrong


def main() -> int:
    level = Level[sys.argv[3].upper().replace(" ", "_")] if len(sys.argv) > 3 else Level.READ_COMMITTED
    wrong = verdict(Path(sys.argv[1]), Path(sys.argv[2]), level)
    print("\n".join(wrong) or "atomic, and consistent")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

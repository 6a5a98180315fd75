"""A hook of pre-commit: a commit's subject is an imperative of at most 72 characters, with a capital and no full stop.

python -m tests.support.commit_subject FILE, where the file has the message.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LONGEST = 72
_BY_GIT = ("Merge ", "Revert ", "fixup! ", "squash! ", "amend! ")
#: How a first word ends that is no imperative: Added, Adding, Adds, Tests, MariaDB's.
_ENDS = re.compile(r"(?:[a-z]ed|[a-z]ing|[^su]s|us's|u's)$")
#: Imperatives that end so, and what is none in any form.
_IMPERATIVES = frozenset(
    {"bring", "embed", "exceed", "feed", "need", "ping", "proceed", "seed", "shed", "speed", "string"}
)
_NONE = frozenset({"a", "an", "no", "the", "this"})


def problem(subject: str) -> str | None:
    """What is wrong with it; None if nothing is, or if git has written it."""
    if subject.startswith(_BY_GIT):
        return None
    if len(subject) > LONGEST:
        return f"has {len(subject)} characters, and {LONGEST} are allowed: put the reasons below an empty line"
    if not subject[:1].isupper() or subject.endswith("."):
        return "must begin with a capital, and end without a full stop"
    first = subject.partition(" ")[0].lower()
    if first in _NONE or (first not in _IMPERATIVES and _ENDS.search(first)):
        return f"begins with {first!r}: write what to do, such as Add, Fix, Move, Say"
    return None


def main(path: str) -> int:
    """0 if the subject is well, or there is none, which git itself refuses."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    subject = next((line.strip() for line in lines if line.strip() and not line.startswith("#")), "")
    wrong = problem(subject) if subject else None
    if wrong is not None:
        print(f"the commit's subject {subject!r} {wrong}", file=sys.stderr)
    return int(wrong is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

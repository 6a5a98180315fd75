"""Whether each transaction is in all of its databases or in none, and as its caller was told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tests.judge.history import Attempt, Key, Told


def torn(attempts: Mapping[str, Attempt], lists: Mapping[Key, Sequence[str]]) -> Iterator[str]:
    """A sentence for each transaction that is not atomic, and for each value that is not of one.

    Args:
        attempts: the transactions of a history, by name.
        lists: what the databases hold at the end, read by a client that is no part of what is judged.
    """
    held = _held(lists)
    for name, keys in held.items():
        twice = sorted(key for key, times in keys.items() if times > 1)
        if twice:
            yield f"{name} was applied more than once: {twice}"
        if name not in attempts:
            yield f"{name} is in {sorted(keys)}, and nobody has appended it"
    for name, attempt in attempts.items():
        yield from _judged(attempt, frozenset(held.get(name, ())))


def _held(lists: Mapping[Key, Sequence[str]]) -> dict[str, Counter[Key]]:
    held: dict[str, Counter[Key]] = {}
    for key, values in lists.items():
        for value in values:
            held.setdefault(value, Counter())[key] += 1
    return held


def _judged(attempt: Attempt, held: frozenset[Key]) -> Iterator[str]:
    if held - attempt.appends:
        yield f"{attempt.name} is in {sorted(held - attempt.appends)}, to which it did not append"
    if held and attempt.appends - held:
        yield f"{attempt.name} is torn: in {sorted(held)}, and not in {sorted(attempt.appends - held)}"
    if attempt.told is Told.COMMITTED and not held and attempt.appends:
        yield f"{attempt.name} was told to be committed, and is nowhere"
    if attempt.told is Told.ROLLED_BACK and held:
        yield f"{attempt.name} was told to be rolled back, and is in {sorted(held)}"

"""How very many transactions in doubt are packed: those that matter most first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Final

from recovery.operator.listing import BranchState, InDoubt
from txpool.log.base import Heuristic
from txpool.packed import Packer, Plain

#: The fields that `marshal` can write as they are. What people have done by hand is in no list.
_PLAIN: Final = tuple(each.name for each in fields(InDoubt) if each.name not in ("branches", "heuristics", "history"))


@dataclass(slots=True)
class Tally:
    """Counts of transactions in doubt."""

    #: Those with heuristic outcomes.
    heuristic: int = 0
    #: Those that are unresolved: that a person should look at, and that others end.
    waiting: int = 0
    of_others: int = 0
    #: The largest age of an unresolved one, in seconds; None if none has an age.
    oldest: float | None = None
    #: The same of those that are ours, of which one without an age counts as new; None if there is none.
    oldest_of_ours: float | None = None

    def count(self, found: Iterable[InDoubt]) -> Tally:
        """Count these, too."""
        for each in found:
            self.heuristic += bool(each.heuristics)
            if not each.unresolved:
                continue
            self.waiting += each.attention
            self.of_others += not each.attention
            if each.age is not None:
                self.oldest = max(self.oldest or 0.0, each.age)
            if each.ours:
                self.oldest_of_ours = max(self.oldest_of_ours or 0.0, each.age or 0.0)
        return self


def order(each: InDoubt) -> tuple[bool, bool, float]:
    """Those with heuristic outcomes come first, and those that others have prepared last; then the oldest."""
    return not each.heuristics, each.foreign, -(each.age or 0.0)


def packer() -> Packer[InDoubt]:
    """Packs them in this order."""
    return Packer(_pack, _unpack)


def _pack(each: InDoubt) -> Plain:
    branches = tuple((it.gid, it.datasource, it.state, it.owner, str(it.error)) for it in each.branches)
    heuristics = tuple((it.gtrid, it.bqual, it.datasource, it.decided, it.ended, it.noted) for it in each.heuristics)
    texts = {name: getattr(each, name) for name in _PLAIN}
    return order(each), texts, branches, heuristics


def _unpack(plain: Plain) -> InDoubt:
    _, texts, branches, heuristics = plain
    return InDoubt(
        branches=tuple(BranchState(*it) for it in branches),
        heuristics=tuple(Heuristic(*it) for it in heuristics),
        **texts,
    )

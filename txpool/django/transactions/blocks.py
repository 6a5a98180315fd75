"""What Django's `atomic` keeps on a connection: its savepoints and its blocks, as lists that tell the connection.

`Atomic` is Django's own. It asks these lists, and so meets what Django's own engines do not have: that an alias may be
in a transaction without a block of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txpool.django.wrapper import Transactional


class Savepoints(list[Any]):
    """The savepoints of the blocks that are open, None for one that has none."""

    def __init__(self, connection: Transactional) -> None:
        super().__init__()
        self._connection = connection

    def append(self, sid: str | None) -> None:
        """A block is entered. The outermost of an alias that has joined has a savepoint, also if it wants none.

        Without one, what the alias has done there could not be undone alone, as Django does in an outermost block.
        """
        if sid is None and not self and not self._connection.has_begun:
            sid = self._connection.savepoint()
        super().append(sid)

    def pop(self, index: Any = -1) -> Any:
        """A block is left. An error if that has outlived its transaction."""
        sid = super().pop(index)
        if not self:
            self._connection.outermost_left()
        return sid


class Blocks(list[Any]):
    """The blocks that are open. The innermost, for a block that wants to be durable, may be another alias's."""

    def __init__(self, connection: Transactional) -> None:
        super().__init__()
        self._connection = connection

    def __bool__(self) -> bool:
        return len(self) > 0 or self._connection.is_within_another()

    def __getitem__(self, index: Any) -> Any:
        if len(self) > 0 and not self._connection.is_within_another():
            return super().__getitem__(index)
        raise RuntimeError(
            f"A durable atomic block cannot be nested within another atomic block: alias {self._connection.alias!r} "
            f"is in a transaction that another alias, or txpool.transaction(), has begun, and only the end of that "
            "commits."
        )

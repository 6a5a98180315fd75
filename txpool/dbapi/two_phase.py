"""tpc_*() of the driver's connection on a plain handle, which a transaction's handle does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from txpool.dbapi.handle import Handle
from txpool.dbapi.refusals import reserved_name, two_phase_refused
from txpool.errors import translated
from txpool.tm.ambient import ambient as ambient_transaction
from txpool.xid import is_reserved, text_of

if TYPE_CHECKING:
    from txpool.dbapi.enlistment import Enlistment
    from txpool.tm.transaction import Transaction

_TWO_PHASE = frozenset({"tpc_begin", "tpc_prepare", "tpc_commit", "tpc_rollback", "tpc_recover"})


class TwoPhaseHandle(Handle):
    """A handle whose user may end a two-phase transaction by hand, outside any transaction of txpool's."""

    __slots__ = ()

    #: Whether the driver's reset ends what tpc_begin() has begun. If not, the pool closes the connection instead.
    _RESETS_TWO_PHASE: ClassVar[bool] = False

    def _caller_of(self, name: str) -> Callable[[str, Any, Any], Any]:
        return self._two_phase if name in _TWO_PHASE else super()._caller_of(name)

    def _two_phase(self, name: str, args: Any, kwargs: Any) -> Any:
        """Call a tpc_*() of the driver's connection, which a transaction's handle does not have."""
        raw = self.two_phase_raw(name, args)
        state = self._own_state()
        state.in_two_phase = state.in_two_phase or name == "tpc_begin"
        with translated():
            result = getattr(raw, name)(*args, **kwargs)
        if name in ("tpc_commit", "tpc_rollback"):
            state.in_two_phase = False
        return result

    def two_phase_raw(self, name: str, xids: Any = ()) -> Any:
        """The raw connection, on which a tpc_*() with these arguments is called. Errors: as `current_enlistment`.

        NotSupportedError inside a transaction, unless the handle has work of its own from before, which it may end.
        ProgrammingError for an xid of txpool's own.
        """
        self.require_open()
        enlistment, pooled = self.enlistment, self.pooled
        own = pooled is not None and pooled.pool_state is not None and self.has_work(pooled.raw)
        inside: Enlistment | Transaction | None = None if own else ambient_transaction()
        if enlistment is not None and not enlistment.ended:
            inside = enlistment
        if inside is not None:
            raise two_phase_refused(name, self._open_datasource().name, inside.gtrid)
        for xid in xids:
            if xid is not None and is_reserved(xid):
                raise reserved_name(name, text_of(xid))
        if not own:
            self.current_enlistment()
        self.require_transaction()
        pooled = self.pooled
        pooled.dirty = True  # type: ignore[union-attr]
        if not self._RESETS_TWO_PHASE:
            pooled.mark_unreusable()  # type: ignore[union-attr]
        return pooled.raw  # type: ignore[union-attr]

    def _open_two_phase(self) -> str:
        state = self.handle_state
        return ", in a two-phase transaction" if state is not None and state.in_two_phase else ""

"""The model: databases that keep their word, a network and processes that do not, and a disk that forgets.

An `ExternalState` is a value; `Transitions.apply` is what one command does to it. The decision log's own behaviour is
the memory store's real code. Only what is written and not yet synced, and what a failed sync made invisible, is the
model's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.crash.explorer.scenarios import LEDGER
from txpool.log.base import Decision, Heuristic, IncarnationState
from txpool.log.memory import MemoryDisk, MemoryLog
from txpool.resources.base import BranchRecord, PrepareLocation, Refused
from txpool.xid import Xid, make_gtrid

NODE = "node"
INCARNATION = "c" * 12
GTRID = make_gtrid(NODE, INCARNATION, 1)
#: The identity of its table of marks.
RIGHT = "right0table0"
#: The role that our sessions log in as.
OURS = "app"

#: A command: its verb, the database it goes to (or "log"), and its arguments; all hashable.
Command = tuple[Any, ...]
#: A branch's record, hashable: bqual, datasource, and whether there is evidence.
Rec = tuple[str, str, bool]
#: What stands under the gtrid's key: the branches of a decision, the datasource of a last resource, or an abort record.
Kept = tuple[Rec, ...] | str | None
#: An answer: ("=", value), or ("!", class, text) for an exception.
Reply = tuple[Any, ...]


class LogState(NamedTuple):
    """What the processes of a node read in their decision log."""

    outcomes: frozenset[tuple[str, Kept]] = frozenset()
    lives: tuple[tuple[str, IncarnationState], ...] = ((INCARNATION, IncarnationState.ALIVE),)
    finished: frozenset[str] = frozenset()
    pointers: frozenset[tuple[str, str]] = frozenset()
    notes: frozenset[tuple[str, str, str]] = frozenset()
    expired: frozenset[str] = frozenset()
    #: Where it is noted that this node prepares.
    locations: frozenset[str] = frozenset()


class ExternalState(NamedTuple):
    """All that is outside of the processes."""

    #: By branch: "open", "held" (prepared, and its session still connected), "prepared", "committed", "aborted",
    #: "read-only"; and the name it was prepared under.
    branches: tuple[tuple[str, str], ...]
    #: The marked branch's local transaction: "", "open", "row" (its INSERT is done), "left" (its client has gone, and a
    #: command is on its way), "committed", "aborted".
    ledger: str = ""
    #: Committed rows of the marked database; None is a tombstone.
    rows: frozenset[tuple[str, tuple[Rec, ...] | None]] = frozenset()
    log: LogState = LogState()
    #: Readable, and gone with the power: "decision", "fence", "row".
    unsynced: frozenset[str] = frozenset()
    #: A decision whose sync failed: not readable, and back after a loss of power.
    shadow: tuple[Rec, ...] | None = None
    #: Commands on their way, given up by whoever sent them.
    late: tuple[Command, ...] = ()
    #: A person has rolled a branch back by hand, in its database, after the decision.
    meddled: bool = False
    #: The servers that have failed over; and whether one has lost a prepared branch by that, after the decision.
    changed: frozenset[str] = frozenset()
    failed: bool = False
    #: The coordinator could not read whether it was fenced.
    blind: bool = False
    #: What somebody who owns nothing has prepared: the database, and the name that it has there.
    forged: frozenset[tuple[str, str]] = frozenset()
    #: Such a branch was ended by us, and no decision named it.
    touched: bool = False
    #: The marked datasource's url leads to a copy, which has a table of marks of another identity, and no row.
    wrong_url: bool = False

    @property
    def life(self) -> IncarnationState | None:
        return dict(self.log.lives).get(INCARNATION)


class CommandLost(Exception):
    """What a cut connection, or a disk that fails, looks like to the process."""


class DatabaseError(Exception):
    """A definite error of a database."""


class Taken(DatabaseError):
    """Another prepared transaction has that name (PostgreSQL: 42710)."""


class Busy(Exception):
    """A lock timeout: somebody's row is in flight."""


def freeze(records: Iterable[BranchRecord]) -> tuple[Rec, ...]:
    return tuple((r.xid.bqual, r.datasource, bool(r.evidence)) for r in records)


def thaw(recs: Iterable[Rec]) -> tuple[BranchRecord, ...]:
    return tuple(
        BranchRecord(Xid(GTRID, bqual), datasource, datasource, {"xid": "7"} if evidence else {})
        for bqual, datasource, evidence in recs
    )


_DURABLE = frozenset(
    {
        "record",
        "abort",
        "note_last",
        "abort_noted",
        "fence",
        "finish",
        "point",
        "purge",
        "record_heuristic",
        "expire",
        "note_location",
    }
)


def location_of(name: str) -> PrepareLocation:
    """Where a branch of ours is prepared, and as whom."""
    return PrepareLocation(name, name, OURS)


def named(world: ExternalState) -> frozenset[tuple[str, str]]:
    """The branches that what is decided names: in which database, and how."""
    kept = [recs for _, recs in (*world.log.outcomes, *world.rows) if recs and not isinstance(recs, str)]
    return frozenset((place, bqual) for recs in kept for bqual, place, _ in recs)


class Transitions:
    """What commands do, for one scenario. `flaws` name what a mutation leaves out of the model's own stores."""

    def __init__(
        self,
        names: tuple[str, ...],
        abstaining: frozenset[str],
        *,
        reading: frozenset[str],
        holds: bool,
        flaws: frozenset[str],
        superuser: bool,
    ) -> None:
        self.names = names
        self.flaws = flaws
        #: Where only reads were done.
        self.reading = reading
        #: Recovery may end what it does not own.
        self._superuser = superuser
        self._abstaining = abstaining
        self._holds = holds
        self._index = {name: number for number, name in enumerate(names)}
        self._known: dict[tuple[ExternalState, Command], tuple[ExternalState, Reply]] = {}
        self._log_known: dict[tuple[LogState, Command], tuple[LogState, Reply]] = {}

    def apply(self, world: ExternalState, command: Command) -> tuple[ExternalState, Reply]:
        """The world after the command, and what is answered."""
        key = (world, command)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._apply(world, command)
        return found

    def state(self, world: ExternalState, name: str) -> str:
        return world.branches[self._index[name]][0]

    def _apply(self, world: ExternalState, command: Command) -> tuple[ExternalState, Reply]:
        verb, place, *arguments = command
        if place == "log":
            return self._ask_log(world, command)
        step = getattr(self, f"_{verb}_row" if place == LEDGER else f"_{verb}")
        return step(world, place, *arguments)  # type: ignore[no-any-return]

    # -- a database that prepares -------------------------------------------------------------------------------

    def _become(self, world: ExternalState, name: str, state: str, bqual: str | None = None) -> ExternalState:
        branches = list(world.branches)
        number = self._index[name]
        branches[number] = (state, branches[number][1] if bqual is None else bqual)
        return world._replace(branches=tuple(branches))

    def _ask(self, world: ExternalState, name: str) -> tuple[ExternalState, Reply]:
        if self.state(world, name) != "open":
            return world, ("!", CommandLost, "the session is gone")
        return world, ("=", name in self.reading)

    def _prepare(self, world: ExternalState, name: str, bqual: str) -> tuple[ExternalState, Reply]:
        if self.state(world, name) != "open":
            return world, ("!", CommandLost, "the session is gone")
        if name in self._abstaining:
            return self._become(world, name, "read-only"), ("=", "read-only")
        if (name, bqual) in world.forged:
            return self._become(world, name, "aborted"), ("!", Taken, "somebody else has prepared under that name")
        return self._become(world, name, "held" if self._holds else "prepared", bqual), ("=", "commit")

    def _refuse(self, world: ExternalState, name: str) -> tuple[ExternalState, Reply]:
        return self._become(world, name, "aborted"), ("!", DatabaseError, "the database votes no")

    def _leave(self, world: ExternalState, name: str) -> tuple[ExternalState, Reply]:
        """The local transaction is rolled back, where it is still one."""
        gone = self.state(world, name) == "open" and not any(c[:2] == ("prepare", name) for c in world.late)
        return (self._become(world, name, "aborted") if gone else world), ("=", None)

    def _alone(self, world: ExternalState, name: str) -> tuple[ExternalState, Reply]:
        if self.state(world, name) != "open":
            return world, ("!", CommandLost, "the session is gone")
        return self._become(world, name, "committed"), ("=", None)

    def _commit(
        self, world: ExternalState, name: str, bqual: str, evidence: bool, own: bool
    ) -> tuple[ExternalState, Reply]:
        return self._end(world, name, bqual, "committed", evidence, own)

    def _rollback(
        self, world: ExternalState, name: str, bqual: str, evidence: bool, own: bool
    ) -> tuple[ExternalState, Reply]:
        return self._end(world, name, bqual, "aborted", evidence, own)

    def _end(
        self, world: ExternalState, name: str, bqual: str, end: str, evidence: bool, own: bool
    ) -> tuple[ExternalState, Reply]:
        if (name, bqual) in world.forged:
            return self._end_forged(world, name, bqual, end, own)
        state, prepared = world.branches[self._index[name]]
        if prepared and bqual != prepared:
            return world, ("=", "absent")
        if state == "prepared" or (state == "held" and own):
            return self._become(world, name, end), ("=", end)
        if state == "held":
            return world, ("=", "nota")
        if name in world.changed and "any server" not in self.flaws:
            return world, ("=", "lost")
        if not evidence:
            return world, ("=", "absent")
        return world, ("=", state if state in ("committed", "aborted") else "in progress")

    def _end_forged(
        self, world: ExternalState, name: str, bqual: str, end: str, own: bool
    ) -> tuple[ExternalState, Reply]:
        if own or not self._superuser:
            return world, ("=", "refused")
        # What takes the place of ours between a listing and the command is ended in its place.
        touched = bqual != world.branches[self._index[name]][1] and (name, bqual) not in named(world)
        ended = world._replace(forged=world.forged - {(name, bqual)}, touched=world.touched or touched)
        return ended, ("=", end)

    def _list(self, world: ExternalState, name: str) -> tuple[ExternalState, Reply]:
        state, bqual = world.branches[self._index[name]]
        forged = sorted(taken for place, taken in world.forged if place == name)
        ours = [(bqual, True)] if state in ("prepared", "held") else []
        return world, ("=", (*((taken, False) for taken in forged), *ours))

    def _reach(self, world: ExternalState, name: str) -> tuple[ExternalState, Reply]:
        return world, ("=", None)

    def forge(self, world: ExternalState, name: str, bqual: str) -> ExternalState | None:
        """Somebody who owns nothing prepares under that name; None where it is taken."""
        state, prepared = world.branches[self._index[name]]
        if (name, bqual) in world.forged or (state in ("prepared", "held") and bqual == prepared):
            return None
        return world._replace(forged=world.forged | {(name, bqual)})

    def meddle(self, world: ExternalState, name: str) -> ExternalState:
        """A person rolls a prepared branch back, not knowing that it is decided."""
        return self._become(world, name, "aborted")._replace(meddled=True)

    def fail_over(self, world: ExternalState, name: str, *, losing: bool) -> ExternalState:
        """A standby takes the server's place; it may lack a prepared branch."""
        after = world._replace(changed=world.changed | {name})
        return self._become(after, name, "aborted")._replace(failed=True) if losing else after

    def notice(self, world: ExternalState, name: str) -> ExternalState:
        """The server sees that the session which had prepared is gone."""
        return self._become(world, name, "prepared")

    # -- the marked database ------------------------------------------------------------------------------------

    def _ask_row(self, world: ExternalState, place: str) -> tuple[ExternalState, Reply]:
        if world.ledger != "open":
            return world, ("!", CommandLost, "the session is gone")
        return world, ("=", place in self.reading)

    def _mark_row(
        self, world: ExternalState, place: str, gtrid: str, recs: tuple[Rec, ...]
    ) -> tuple[ExternalState, Reply]:
        if world.ledger == "left":
            return world._replace(ledger="aborted"), ("!", CommandLost, "the session is gone")
        if world.ledger != "open":
            return world, ("!", CommandLost, "the session is gone")
        if any(key == gtrid for key, _ in world.rows):
            return world._replace(ledger="aborted"), ("!", DatabaseError, "the key is taken")
        return world._replace(ledger="row"), ("=", None)

    def _decide_row(
        self, world: ExternalState, place: str, gtrid: str, recs: tuple[Rec, ...]
    ) -> tuple[ExternalState, Reply]:
        if world.ledger != "row":
            return world, ("!", CommandLost, "the session is gone")
        rows = world.rows | {(gtrid, recs)}
        return world._replace(ledger="committed", rows=rows, unsynced=world.unsynced - {"row"}), ("=", None)

    def _both_row(
        self, world: ExternalState, place: str, gtrid: str, recs: tuple[Rec, ...]
    ) -> tuple[ExternalState, Reply]:
        begun = world._replace(ledger="open") if world.ledger == "left" else world
        marked, reply = self._mark_row(begun, place, gtrid, recs)
        return self._decide_row(marked, place, gtrid, recs) if reply[0] == "=" else (marked, reply)

    def _alone_row(self, world: ExternalState, place: str) -> tuple[ExternalState, Reply]:
        if world.ledger not in ("open", "left"):
            return world, ("!", CommandLost, "the session is gone")
        return world._replace(ledger="committed"), ("=", None)

    def _leave_row(self, world: ExternalState, place: str) -> tuple[ExternalState, Reply]:
        busy = any(c[1] == LEDGER and c[0] in ("mark", "decide", "both", "alone") for c in world.late)
        if world.ledger in ("open", "row") and not busy:
            world = world._replace(ledger="aborted")
        elif world.ledger == "open":
            world = world._replace(ledger="left")
        return world, ("=", None)

    def _abort_row(self, world: ExternalState, place: str, gtrid: str, identity: str) -> tuple[ExternalState, Reply]:
        return self._tombstone_row(self._leave_row(world, place)[0], place, gtrid, identity)

    def _tombstone_row(
        self, world: ExternalState, place: str, gtrid: str, identity: str
    ) -> tuple[ExternalState, Reply]:
        if world.wrong_url:
            # The copy's own rows and tombstones are nobody's.
            return world, ("=", None) if identity != RIGHT else ("!", DatabaseError, "it is another table")
        if world.ledger == "row":
            return world, ("!", Busy, "a row is in flight")
        kept = dict(world.rows).setdefault(gtrid, None)
        synced = world.unsynced if "unsynced tombstone" in self.flaws else world.unsynced - {"row"}
        return world._replace(rows=world.rows | {(gtrid, kept)}, unsynced=synced), ("=", kept)

    def _rows_row(self, world: ExternalState, place: str) -> tuple[ExternalState, Reply]:
        return world, ("=", frozenset() if world.wrong_url else world.rows)

    def _delete_row(self, world: ExternalState, place: str, gtrids: tuple[str, ...]) -> tuple[ExternalState, Reply]:
        # Also while the url is wrong: what could not be deleted is deleted another time.
        left = frozenset(row for row in world.rows if row[0] not in gtrids)
        return world._replace(rows=left, unsynced=world.unsynced - {"row"}), ("=", None)

    # -- the decision log ---------------------------------------------------------------------------------------

    def _ask_log(self, world: ExternalState, command: Command) -> tuple[ExternalState, Reply]:
        if command[0] == "insert":  # a flaw: the store looks in a snapshot, and inserts later
            if world.log.outcomes:
                return world, ("!", Refused, "it is decided or aborted already")
            return world._replace(log=world.log._replace(outcomes=frozenset({command[2:]}))), ("=", None)
        key = (world.log, command)
        found = self._log_known.get(key)
        if found is None:
            found = self._log_known[key] = _answer_of_log(world.log, command)
        log, reply = found
        if log is not world.log:
            world = world._replace(log=log)
        if command[0] == "record" and reply[0] == "=" and "no sync" in self.flaws:
            world = world._replace(unsynced=world.unsynced | {"decision"})
        elif command[0] in _DURABLE and reply[0] == "=" and (world.unsynced or world.shadow):
            world = world._replace(unsynced=world.unsynced & {"row"}, shadow=None)
        return world, reply


def _answer_of_log(log: LogState, command: Command) -> tuple[LogState, Reply]:
    """The memory store's own answer, and what it has made of the disk."""
    disk = MemoryDisk(NODE)
    disk.outcomes = {g: Decision(g, thaw(kept)) if isinstance(kept, tuple) else kept for g, kept in log.outcomes}
    disk.states = dict(log.lives)
    disk.finished = set(log.finished)
    disk.pointers = dict(log.pointers)
    disk.expired = set(log.expired)
    disk.heuristics = {(GTRID, b): Heuristic(GTRID, b, "", decided, ended) for b, decided, ended in log.notes}
    for name in log.locations:
        MemoryLog(disk, node=NODE).note_location(location_of(name))
    store = MemoryLog(disk, node=NODE)
    verb, _, *arguments = command
    if verb == "record":
        arguments[1] = thaw(arguments[1])
    elif verb == "record_heuristic":
        arguments = [Heuristic(GTRID, arguments[0], "", *arguments[1:])]
    elif verb == "note_location":
        arguments = [location_of(*arguments)]
    try:
        answer = getattr(store, verb)(*arguments)
    except Exception as error:
        return log, ("!", type(error), str(error))
    after = LogState(
        frozenset(
            (g, freeze(kept.branches) if isinstance(kept, Decision) else kept) for g, kept in disk.outcomes.items()
        ),
        tuple(disk.states.items()),
        frozenset(disk.finished),
        frozenset(disk.pointers.items()),
        frozenset((h.bqual, h.decided, h.ended) for h in disk.heuristics.values()),
        frozenset(disk.expired),
        frozenset(note.location.datasource for note in store.locations()),
    )
    if isinstance(answer, dict):
        answer = frozenset(
            (key, freeze(value.branches) if isinstance(value, Decision) else value) for key, value in answer.items()
        )
    elif isinstance(answer, set):
        answer = frozenset(answer)
    elif verb == "locations":
        answer = after.locations
    elif isinstance(answer, list):
        answer = after.notes
    return (log if after == log else after), ("=", answer)

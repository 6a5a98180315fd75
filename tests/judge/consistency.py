"""Whether what transactions have read within one database fits an order of them, as the isolation level promises.

Each list only grows, so that its last state is the order of its appends, and what a read has seen tells between which
two appends it stood. From that follow the dependencies of transactions, of which a level forbids some cycles (Adya's
phenomena; the way of inferring them is Kingsbury's and Alvaro's, Elle, VLDB 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, IntEnum
from functools import partial
from itertools import pairwise
from typing import TypeVar

from tests.judge.history import Attempt, Key, Read


class Level(IntEnum):
    """Isolation levels, the weakest first."""

    READ_COMMITTED = 1
    SNAPSHOT = 2
    SERIALIZABLE = 3


class Dependency(Enum):
    """Why one transaction stands before another."""

    WRITE_WRITE = "ww"
    WRITE_READ = "wr"
    READ_WRITE = "rw"


#: From one transaction to those that stand behind it.
Graph = dict[str, dict[str, set[Dependency]]]
Node = TypeVar("Node", bound=Hashable)


def anomalies(
    attempts: Mapping[str, Attempt], lists: Mapping[Key, Sequence[str]], database: str, level: Level
) -> Iterator[str]:
    """A sentence for each phenomenon of a database that its level forbids."""
    states = {key: tuple(values) for key, values in lists.items() if key.database == database}
    committed = {value for values in lists.values() for value in values}
    graph: Graph = {}
    for values in states.values():
        for first, then in pairwise(values):
            _depend(graph, first, then, Dependency.WRITE_WRITE)
    for attempt in attempts.values():
        for read in attempt.reads:
            if read.key.database == database:
                yield from _seen(attempt, read, states.get(read.key, ()), committed)
                if attempt.name in committed or not attempt.appends:
                    _place(graph, attempt, read, states.get(read.key, ()))
    yield from _cycles(graph, level)


def _seen(attempt: Attempt, read: Read, state: tuple[str, ...], committed: set[str]) -> Iterator[str]:
    """What is wrong with one read, whatever others did."""
    seen = _of_others(attempt, read)
    aborted = [value for value in seen if value not in committed]
    if aborted:
        yield f"G1a: {attempt.name} has read {aborted} in {read.key}, which did not commit"
    elif state[: len(seen)] != seen:
        yield f"{attempt.name} has read {seen} in {read.key}, which at its end is {state}"
    if attempt.name in read.values and read.key not in attempt.appends:
        yield f"{attempt.name} has read itself in {read.key}, to which it did not append"
    if attempt.name in read.values[:-1]:
        yield f"{attempt.name} has read in {read.key} what others appended behind it before it ended: {read.values}"


def _of_others(attempt: Attempt, read: Read) -> tuple[str, ...]:
    return tuple(value for value in read.values if value != attempt.name)


def _place(graph: Graph, attempt: Attempt, read: Read, state: tuple[str, ...]) -> None:
    """Put a reader behind who wrote what it saw, and before who appended next."""
    seen = _of_others(attempt, read)
    if seen:
        _depend(graph, seen[-1], attempt.name, Dependency.WRITE_READ)
    if len(seen) < len(state):
        _depend(graph, attempt.name, state[len(seen)], Dependency.READ_WRITE)


def _depend(graph: Graph, first: str, then: str, why: Dependency) -> None:
    if first != then:
        graph.setdefault(first, {}).setdefault(then, set()).add(why)


_WRITES = frozenset({Dependency.WRITE_WRITE})
_FLOW = _WRITES | {Dependency.WRITE_READ}
_ALL = _FLOW | {Dependency.READ_WRITE}


def _cycles(graph: Graph, level: Level) -> Iterator[str]:
    """One sentence for each kind of cycle that the level forbids, with one such cycle."""
    for name, kinds in (("G0", _WRITES), ("G1c", _FLOW)):
        found = _cycle(graph, partial(_behind, graph, kinds))
        if found:
            yield f"{name}: {' -> '.join(found)}"
            return
    if level >= Level.SNAPSHOT:
        steps = _cycle(((name, False) for name in graph), partial(_apart, graph))
        if steps:
            name = "G-single" if sum(overtaken for _, overtaken in steps[1:]) == 1 else "G-nonadjacent"
            yield f"{name}: {' -> '.join(each for each, _ in steps)}"
    if level >= Level.SERIALIZABLE:
        found = _cycle(graph, partial(_behind, graph, _ALL))
        if found:
            yield f"G2: {' -> '.join(found)}"


def _cycle(starts: Iterable[Node], behind: Callable[[Node], Iterator[Node]]) -> list[Node] | None:
    """A cycle that one of these leads to, if there is one."""
    done: set[Node] = set()
    for start in starts:
        path: dict[Node, Iterator[Node]] = {} if start in done else {start: behind(start)}
        while path:
            node, others = next(reversed(path.items()))
            other = next((each for each in others if each not in done), None)
            if other is None:
                done.add(node)
                del path[node]
            elif other in path:
                nodes = [*path]
                return [*nodes[nodes.index(other) :], other]
            else:
                path[other] = behind(other)
    return None


def _behind(graph: Graph, kinds: frozenset[Dependency], node: str) -> Iterator[str]:
    return (other for other, why in graph.get(node, {}).items() if why & kinds)


def _apart(graph: Graph, step: tuple[str, bool]) -> Iterator[tuple[str, bool]]:
    """What stands behind a transaction, each with whether a read was overtaken just before it: never two in a row.

    A snapshot forbids the cycles of such steps, and allows all others (Cerone and Gotsman, PODC 2016).
    """
    node, overtaken = step
    for other, why in graph.get(node, {}).items():
        if why & _FLOW:
            yield other, False
        elif not overtaken:
            yield other, True

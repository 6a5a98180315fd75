"""Whether what transactions have read within one database fits an order of them, as the isolation level promises.

Each list only grows, so that its last state is the order of its appends, and what a read has seen tells between which
two appends it stood. From that follow the dependencies of transactions, of which a level forbids some cycles (Adya's
phenomena; the way of inferring them is Kingsbury's and Alvaro's, Elle, VLDB 2020).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, IntEnum
from heapq import heapify, heappop, heappush
from itertools import pairwise

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
    yield from _cycles(graph, level, attempts)


def _seen(attempt: Attempt, read: Read, state: tuple[str, ...], committed: set[str]) -> Iterator[str]:
    """What is wrong with one read, whatever others did."""
    seen = _of_others(attempt, read)
    aborted = [value for value in seen if value not in committed]
    if aborted:
        yield f"G1a: {attempt.name} has read {aborted} in {read.key}, which did not commit"
    elif state[: len(seen)] != seen:
        yield f"{attempt.name} has read {seen} in {read.key}, which at its end is {state}"
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


def _cycles(graph: Graph, level: Level, begun: Iterable[str]) -> Iterator[str]:
    """One sentence for each kind of cycle that the level forbids, with one such cycle.

    `begun` has the transactions in the order in which they began.
    """
    for name, kinds in (("G0", _WRITES), ("G1c", _FLOW)):
        found = _cycle(graph, kinds)
        if found:
            yield f"{name}: {' -> '.join(found)}"
            return
    if level >= Level.SNAPSHOT:
        yield from _single(graph, _places(graph, begun))
    if level >= Level.SERIALIZABLE:
        found = _cycle(graph, _ALL)
        if found:
            yield f"G2: {' -> '.join(found)}"


def _places(graph: Graph, begun: Iterable[str]) -> dict[str, int]:
    """The place of each transaction in an order in which all flows forward, and that is else near to `begun`."""
    number = {name: place for place, name in enumerate(begun)}
    before = Counter(other for node in graph for other in _behind(graph, node, _FLOW))
    free = [(number.get(node, -1), node) for node in graph if not before[node]]
    heapify(free)
    places: dict[str, int] = {}
    while free:
        node = heappop(free)[1]
        places[node] = len(places)
        for other in _behind(graph, node, _FLOW):
            before[other] -= 1
            if not before[other]:
                heappush(free, (number.get(other, -1), other))
    return places


def _single(graph: Graph, places: Mapping[str, int]) -> Iterator[str]:
    """G-single: a cycle with one read that was overtaken, and else only what flowed, which does so forward."""
    for first, others in graph.items():
        for then, why in others.items():
            overtaken = Dependency.READ_WRITE in why and places.get(then, 0) < places[first]
            way = _way(graph, then, first, places) if overtaken else None
            if way:
                yield f"G-single: {' -> '.join([first, *way])}"
                return


def _cycle(graph: Graph, kinds: frozenset[Dependency]) -> list[str] | None:
    """A cycle of dependencies of these kinds, if there is one."""
    done: set[str] = set()
    for start in graph:
        path: dict[str, Iterator[str]] = {} if start in done else {start: _behind(graph, start, kinds)}
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
                path[other] = _behind(graph, other, kinds)
    return None


def _way(graph: Graph, start: str, end: str, places: Mapping[str, int]) -> list[str] | None:
    """A shortest way from one to another by what flows, both ends in it."""
    before: dict[str, str] = {start: start}
    turn = [start]
    while turn:
        following = []
        for node in turn:
            for other in _behind(graph, node, _FLOW):
                if other not in before and places[other] <= places[end]:
                    before[other] = node
                    following.append(other)
        if end in before:
            way = [end]
            while way[-1] != start:
                way.append(before[way[-1]])
            return way[::-1]
        turn = following
    return None


def _behind(graph: Graph, node: str, kinds: frozenset[Dependency]) -> Iterator[str]:
    return (other for other, why in graph.get(node, {}).items() if why & kinds)

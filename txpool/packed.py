"""Packed: very many things in little memory, by their keys. A thing is made anew whenever it is looked at."""

from __future__ import annotations

import marshal
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, ValuesView
from heapq import merge
from itertools import chain, islice, pairwise
from operator import itemgetter
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")
V = TypeVar("V")
#: What a thing is packed as: its key, and whatever else `marshal` can write.
Plain = tuple[Any, ...]

#: So many things are kept as they are, and in the order in which they came.
FEW = 4096
#: How many are packed together.
BLOCK = 256
_key = itemgetter(0)


class Packed(Sequence[T]):
    """A sequence of packed things, sorted by their keys. Those of one key are in the order in which they came."""

    __slots__ = ("_blocks", "_ends", "_length", "_unpack", "lasts")
    __hash__ = None  # type: ignore[assignment]  # as it equals a tuple of the same things

    def __init__(self, records: Iterable[Plain], unpack: Callable[[Plain], T]) -> None:
        self._unpack = unpack
        self._blocks: list[bytes] = []
        #: By block: the last key, and how many things there are up to its end.
        self.lasts: list[Any] = []
        self._ends: list[int] = []
        self._length = 0
        rest = iter(records)
        while block := list(islice(rest, BLOCK)):
            self._blocks.append(_packed_block(block))
            self.lasts.append(block[-1][0])
            self._length += len(block)
            self._ends.append(self._length)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        return map(self._unpack, self.records())

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            first, last, step = index.indices(self._length)
            if step != 1:
                return tuple(self[each] for each in range(first, last, step))
            return tuple(map(self._unpack, islice(self._from(first), max(last - first, 0))))
        place = index + self._length if index < 0 else index
        if not 0 <= place < self._length:
            raise IndexError(index)
        return self._unpack(next(self._from(place)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, (str, bytes)):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return f"<{self._length} packed>"

    def records(self) -> Iterator[Plain]:
        """Each as it is packed, with its key first."""
        return chain.from_iterable(map(_unpacked_block, self._blocks))

    def between(self, after: Any, last: Any) -> Iterator[T]:
        """Those with a key greater than `after`, up to `last`; None has no end on that side."""
        return map(self._unpack, self.records_between(after, last))

    def records_between(self, after: Any, last: Any) -> Iterator[Plain]:
        """As `between`, each as it is packed."""
        begin = 0 if after is None else bisect_right(self.lasts, after)
        for place in range(begin, len(self._blocks)):
            block = _unpacked_block(self._blocks[place])
            first = 0 if after is None else bisect_right(block, after, key=_key)
            end = len(block) if last is None else bisect_right(block, last, key=_key)
            yield from block[first:end]
            if end < len(block):
                return

    def block(self, number: int) -> list[Plain]:
        """The records of one block; none if there is no such block. Block `number` ends with `lasts[number]`."""
        return _unpacked_block(self._blocks[number]) if number < len(self._blocks) else []

    def _from(self, place: int) -> Iterator[Plain]:
        number = bisect_right(self._ends, place)
        begin = self._ends[number - 1] if number else 0
        blocks = map(_unpacked_block, islice(self._blocks, number, None))
        return islice(chain.from_iterable(blocks), place - begin, None)


def _packed_block(records: list[Plain]) -> bytes:
    return zlib.compress(marshal.dumps(records), 1)


def _unpacked_block(block: bytes) -> list[Plain]:
    return marshal.loads(zlib.decompress(block))  # type: ignore[no-any-return]


class Packer(Generic[T]):
    """Takes things one after the other: few stay as they are, very many are packed.

    `pack` makes a tuple with the key first, and `unpack` the thing again.
    """

    def __init__(self, pack: Callable[[T], Plain], unpack: Callable[[Plain], T]) -> None:
        self._pack = pack
        self._unpack = unpack
        self._few: list[T] = []
        self._runs: list[Packed[Plain]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, thing: T) -> None:
        """Take one more."""
        if len(self._few) >= FEW:
            self._end_run()
        self._few.append(thing)
        self._count += 1

    def extend(self, things: Iterable[T]) -> None:
        """Take more."""
        for each in things:
            self.add(each)

    def packed(self) -> tuple[T, ...] | Packed[T]:
        """All that were taken so far. Few are in the order in which they came, very many in that of their keys."""
        if not self._runs:
            return tuple(self._few)
        if self._few:
            self._end_run()
        runs = self._runs
        follow = all(len(one) == 0 or one.lasts[-1] <= other[0][0] for one, other in pairwise(runs))
        parts = [run.records() for run in runs]
        return Packed(chain(*parts) if follow else merge(*parts, key=_key), self._unpack)

    def _end_run(self) -> None:
        self._runs.append(Packed(sorted(map(self._pack, self._few), key=_key), tuple))
        self._few = []


def between(things: Sequence[T], after: Any, last: Any, key: Callable[[T], Any]) -> Iterable[T]:
    """Those of a packed or plain sequence with a key greater than `after`, up to `last`."""
    if isinstance(things, Packed):
        return things.between(after, last)
    return [each for each in things if (after is None or key(each) > after) and (last is None or key(each) <= last)]


class PackedMapping(Mapping[str, V]):
    """A mapping whose values are packed. To look into it in the order of keys is fast."""

    __slots__ = ("_block", "_unpack", "packed")

    def __init__(self, packed: Packed[Any], unpack: Callable[[Plain], V]) -> None:
        self.packed = packed
        self._unpack = unpack
        #: The block that was looked into last, by its number. Replaced as a whole.
        self._block: tuple[int, dict[str, Plain]] = (-1, {})

    def __len__(self) -> int:
        return len(self.packed)

    def __iter__(self) -> Iterator[str]:
        return map(_key, self.packed.records())

    def __getitem__(self, key: str) -> V:
        return self._unpack(self._records_near(key)[key])

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self._records_near(key)

    def values(self) -> ValuesView[V]:
        return ValuesOfPacked(self)

    def pairs(self, after: str | None = None, last: str | None = None) -> Iterator[tuple[str, V]]:
        """The keys greater than `after`, up to `last`, with their values."""
        return ((record[0], self._unpack(record)) for record in self.packed.records_between(after, last))

    def _records_near(self, key: str) -> dict[str, Plain]:
        number = bisect_left(self.packed.lasts, key)
        found = self._block
        if found[0] != number:
            found = self._block = number, {record[0]: record for record in self.packed.block(number)}
        return found[1]


class ValuesOfPacked(ValuesView[V]):
    """The values of a `PackedMapping`, one after the other."""

    _mapping: PackedMapping[V]

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._mapping.pairs())


class MappingPacker(Generic[V]):
    """Takes values by their keys, each key once: few become a dict, very many are packed.

    `pack` makes a tuple, and `unpack` the value again, out of that with the key in front.
    """

    def __init__(self, pack: Callable[[V], Plain], unpack: Callable[[Plain], V]) -> None:
        self._unpack = unpack
        self._packer = Packer[tuple[str, V]](
            lambda pair: (pair[0], *pack(pair[1])), lambda plain: (plain[0], unpack(plain))
        )

    def add(self, key: str, value: V) -> None:
        """Take one more."""
        self._packer.add((key, value))

    def packed(self) -> Mapping[str, V]:
        """All that were taken so far."""
        found = self._packer.packed()
        return PackedMapping(found, self._unpack) if isinstance(found, Packed) else dict(found)

"""The journals in a warehouse: which files a transaction, and each attempt of Spark's tasks within it, has made.

A journal is durable before the first file, and lists each file before that is made. The transaction's own journal is
there before the first attempt's. The driver takes the files of the attempts that it publishes over into its own
journal, before it commits; a sweep removes that one last. So if it is gone, the journals of attempts list files that
nobody has published.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    from txpool.findings.finding import Finding

#: What a warehouse has of txpool's: its identity, its catalog's token, the journals.
FOLDER: Final = "_txpool"


class MakesFiles(Protocol):
    """Who answers for the files that are made. Any thread may call it."""

    def file(self, location: str) -> Any:
        """List a file that is about to be made; what it is made by: its path, or its upload."""

    def making(self) -> AbstractContextManager[None]:
        """For the time in which a listed file comes to be. An error if what is listed may be removed already."""

    def discard(self, location: str) -> None:
        """Remove a file that was made, and is not needed."""


class WarehouseJournals(ABC):
    """A warehouse's journals, and its files. It can be pickled. Errors: ConfigurationError, OperationalError, OSError.

    An open journal is of a type of its own. A file's path is as `inside` returns it.
    """

    __slots__ = ()

    #: The datasource's name, for errors.
    name: str
    #: Where the warehouse is, as its catalog's tables have it.
    root: str

    @abstractmethod
    def identity(self) -> str:
        """The warehouse's random identity. An error if the warehouse is not there, or others could list files in it."""

    @abstractmethod
    def generation(self) -> str:
        """What changes if the warehouse is another one, as in a restored copy."""

    @abstractmethod
    def key(self) -> str:
        """A secret of the warehouse's, by which snapshots are known as ours. An error if it is not ours alone."""

    @abstractmethod
    def binding(self, token: str) -> str:
        """What binds the warehouse to its catalog: this token, unless there is one already."""

    def findings(self) -> Iterator[Finding]:
        """What `txpool check` finds out about the place."""
        yield from ()

    @abstractmethod
    def inside(self, location: str) -> str:
        """The path of a location in the warehouse. ConfigurationError if it is elsewhere."""

    @abstractmethod
    def located(self, location: str) -> str:
        """The path of a location, which may be anywhere: to be compared with those of files that are listed."""

    @abstractmethod
    def reader(self) -> PyArrowFileIO:
        """What reads files, in this process alone."""

    @abstractmethod
    def io(self, work: MakesFiles) -> PyArrowFileIO:
        """What reads files, and makes those for which `work` answers."""

    @abstractmethod
    def make_once(self, path: str, content: bytes) -> None:
        """Make a file that no journal lists, durably, unless it is there."""

    @abstractmethod
    def size(self, path: str) -> int | None:
        """The size of a file; None if it is not there."""

    @abstractmethod
    def discard(self, path: str) -> None:
        """Remove a file that was made, and is not needed."""

    @abstractmethod
    def sync(self, paths: Iterable[str]) -> None:
        """Make files durable."""

    @abstractmethod
    def shown(self, gtrid: str) -> str:
        """The name of a transaction's journal, for people."""

    @abstractmethod
    def exists(self, gtrid: str) -> bool:
        """Whether a transaction has its journal."""

    @abstractmethod
    def gtrids(self) -> Iterator[str]:
        """The transactions that have journals, as names say. Those that are gone stay so."""

    @abstractmethod
    def open(self, gtrid: str) -> Any:
        """A new journal, durable. FileExistsError if it is there."""

    @abstractmethod
    def reopen(self, gtrid: str) -> Any:
        """A transaction's journal. FileNotFoundError if it has gone; OperationalError if other work has it."""

    @abstractmethod
    def hold(self, journal: Any, gtrid: str) -> None:
        """Keep others from a transaction's journal until it is closed, if there are locks."""

    @abstractmethod
    def is_removed(self, journal: Any) -> bool:
        """Whether an open journal has gone, or a sweep of it has begun."""

    @abstractmethod
    def held_alone(self, gtrid: str, *, sweeping: bool = False) -> AbstractContextManager[Any]:
        """A transaction's journal for the length of the block; None if it has gone.

        OperationalError if other work has it. Where nobody can be kept from it, who prepares finds out by `is_removed`
        that a sweep has begun, once all is noted.
        """

    @abstractmethod
    def note(self, journal: Any, fact: Mapping[str, Any]) -> None:
        """Write down, durably, what is about to be done."""

    @abstractmethod
    def notes(self, gtrid: str) -> list[dict[str, Any]]:
        """What was written down in a transaction's journal; nothing if it has gone."""

    @abstractmethod
    def close(self, journal: Any) -> None:
        """Close a journal. Nothing if it is the parent's of this process."""

    @abstractmethod
    def list_new(self, journal: Any, path: str) -> Any:
        """List a file that is about to be made; what it is made by. OperationalError if the file is there."""

    @abstractmethod
    def list_files(self, journal: Any, *paths: str) -> None:
        """List files, durably."""

    @abstractmethod
    def attempt(self, gtrid: str, numbers: str) -> AbstractContextManager[Any]:
        """A new attempt's journal, for the length of the block, in which it makes files."""

    @abstractmethod
    def clear(self, gtrid: str) -> None:
        """Remove the files that attempts of a transaction list, and its own journal does not: that has been published.

        It goes last. OperationalError if a task still makes files; the journal stays then.
        """

    @abstractmethod
    def clear_but(self, gtrid: str, kept: Set[str], held: Any = None) -> None:
        """Remove the files that a transaction and its attempts list, but for those kept; the own journal goes last.

        Of a journal that is held, those that it listed when that began.
        """

    @abstractmethod
    def remove(self, gtrid: str) -> None:
        """Remove a transaction's journal, durably, once those of the attempts that it has published are gone."""

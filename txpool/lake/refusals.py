"""What pyiceberg refuses is an error of txpool's, too: it says where, and what to do. pyiceberg's own class stays."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, wraps
from inspect import getattr_static, isfunction
from typing import Any, Final, TypeVar

from pyarrow import ArrowException
from pyiceberg import exceptions as theirs
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException
from pyiceberg.table import BaseScan, Table, Transaction
from pyiceberg.table.update import UpdateTableMetadata
from pyparsing import ParseException
from sqlalchemy.exc import DBAPIError

from txpool.errors import Error, NotSupportedError, OperationalError, ProgrammingError

Kind = TypeVar("Kind", bound=type)

_NAMES: Final = "a table is named as in namespace.table"
#: By class: what to do. What is not here is no refusal of a call: a conflict, or a failure of what is below.
_REFUSALS: Final[Mapping[type[Exception], str]] = {
    theirs.NoSuchIdentifierError: _NAMES,
    theirs.NoSuchTableError: "create_table() creates it, or correct its name",
    theirs.NoSuchNamespaceError: "create_namespace() creates it, or correct its name",
    theirs.TableAlreadyExistsError: "load_table() finds it, or name another one",
    theirs.NamespaceAlreadyExistsError: "name another one, or call create_namespace_if_not_exists()",
    theirs.NamespaceNotEmptyError: "drop its tables first",
    UnsupportedPyArrowTypeException: "cast that column to another type",
    NotImplementedError: "do it in another way",
    OSError: "see to that, and try again",
    **dict.fromkeys((theirs.CommitFailedException, theirs.ValidationException), "load the table again, and repeat it"),
    ParseException: "a condition is as in `id = 1 and name is not null`",
    **dict.fromkeys((theirs.ValidationError, ValueError, TypeError, LookupError, AttributeError), "correct the call"),
}
#: The classes that are explained already.
_made: set[type] = set()
#: The attribute of a change or a scan that says of what table it is.
_PLACE: Final = "_txpool_place"
_MISFITS: Final = re.compile(r"❌\s*│\s*(.*?)\s*│\s*(.*?)\s*│")


def explained(kind: Kind) -> Kind:
    """A decorator of classes: what their public methods refuse is explained, and so it is of the changes they begin."""
    for name in dir(kind):
        if not name.startswith("_") and isfunction(found := getattr_static(kind, name)):
            setattr(kind, name, _explaining(found))
    _made.add(kind)
    return kind


@cache
def _explained(kind: Any) -> Any:
    if kind in _made:
        return kind
    return explained(type(kind.__name__, (kind,), {"__module__": kind.__module__}))


def _explaining(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        try:
            made = method(self, *args, **options)
        except tuple(_REFUSALS) as error:
            if isinstance(error, (Error, ArrowException)):
                raise
            kind: Any = type(error)
            text = f"{_place(self)}: {method.__name__}() was not done: {_text(self, error)}"
            refused: Any = _refused(kind)(text)
            if isinstance(error, OSError):
                refused.errno = error.errno
            raise refused from error
        except DBAPIError as error:
            failure = error.orig
            if not isinstance(failure, Error):
                raise
        else:
            if isinstance(made, (UpdateTableMetadata, BaseScan, Transaction)):
                return explaining(made, self)
            return made
        raise failure  # here, where SQLAlchemy's error, whose cause it is, is no context of it

    return call


def explaining(made: Any, of: Any) -> Any:
    """The same object, which belongs to a table or a catalog: what its methods refuse is explained."""
    vars(made).setdefault(_PLACE, _place(of))
    kind: Any = type(made)
    made.__class__ = _explained(kind)
    return made


def _text(of: Any, error: Exception) -> str:
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error).strip()
    misfits = [f"{field}, and the frame has {given}" for field, given in _MISFITS.findall(text)]
    if isinstance(error, ParseException):
        text = f"{error.pstr!r} is no condition from its character {error.loc} on"
    elif misfits:
        text = f"Mismatch in fields: {'; '.join(misfits)}"
    named = isinstance(of, Catalog) and isinstance(error, (ValueError, TypeError)) and "identifier" in text.lower()
    what = _NAMES if named else next(hint for kind, hint in _REFUSALS.items() if isinstance(error, kind))
    return f"{' '.join(text.split()).rstrip('.') or type(error).__name__}: {what}"


def _place(of: Any) -> str:
    """A catalog or a table, for people."""
    if isinstance(of, Catalog):
        return f"catalog {of.name}"
    return ".".join(of.name()) if isinstance(of, Table) else str(vars(of).get(_PLACE, type(of).__name__))


@cache
def _refused(kind: Any) -> Callable[[str], Exception]:
    """Makes an error that is of txpool's class and of the given one."""
    if issubclass(kind, NotImplementedError):
        ours: type[Error] = NotSupportedError
    else:
        ours = OperationalError if issubclass(kind, OSError) else ProgrammingError
    plain = {"__init__": Exception.__init__, "__str__": Exception.__str__, "__reduce__": _reduce}
    try:
        made: type[Exception] = type(kind.__name__, (ours, kind), plain)
        made("")
    except TypeError:  # its class has no such children, as pydantic's
        return _refused(kind.__bases__[0])
    return made


def _reduce(error: Exception) -> tuple[Any, ...]:
    return _again, (type(error).__bases__[1], str(error))


def _again(kind: Any, text: str) -> Exception:
    return _refused(kind)(text)

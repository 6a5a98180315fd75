"""The login that is noted of a datasource which was made in code: see `txpool.config.logins`."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import Final

from txpool.config.logins import REFERENCE, Login, read_note, same_host
from txpool.config.secrets import Secret
from txpool.config.settings.datasource import DataSourceSettings

_PASSWORD_BY_REFERENCE: Final = re.compile(rf"[a-z]+://[^:/?#@]*:(?P<reference>{REFERENCE.pattern})@.*", re.DOTALL)
#: The names that txpool's tables have by default. By any other, a note could choose where recovery writes.
_MARKS, _BRANCHES = "xids", "txpool_branches"


def login_of(settings: DataSourceSettings, scheme: str, *, user: str, host: str, port: int, database: str) -> str:
    """The login that is noted of a datasource. Empty if a file describes it, or if it has none to be followed.

    One with a table of another name than the default has none: recovery takes the name of no table from a note.
    """
    rows, marked = settings.xa_evidence == "row", settings.mode == "cmr"
    named = (rows and settings.xa_evidence_table != _BRANCHES) or (marked and settings.cmr_table != _MARKS)
    if settings.file or named or not host:
        return ""
    reference = "" if settings.password is None else _reference_of(settings.password)
    function = "" if settings.issuer is None else settings.issuer.name
    return _noted(Login(scheme, user, ((same_host(host), str(port)),), database, reference, function, rows))


@lru_cache(maxsize=64)
def _noted(login: Login) -> str:
    return str(login) if read_note(str(login)) is not None else ""


def _reference_of(password: Secret) -> str:
    """The reference that a password consists of; empty if it is another text."""
    entry = password.entry
    form = _PASSWORD_BY_REFERENCE if password.in_url else REFERENCE
    match = form.fullmatch(entry.raw)
    if match is None:
        return ""
    path = match["path"]
    return f"${{env:{match['variable']}}}" if path is None else f"${{file:{os.path.abspath(entry.folder / path)}}}"

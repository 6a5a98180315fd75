"""What proves that a server is the one that prepared a branch, and what an account needs to keep that there.

Identity and generation are in a database `txpool` of their own, and not in the datasource's: a dump of that brings all
its rows to another server, and none of its prepared branches, and that server would prove what it does not know. An
account that may not make the database `txpool` is told so once, with the statements for an administrator.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from txpool.resources.mysql.session.protocol import code_of
from txpool.resources.mysql.session.server import (
    CREATE_GENERATIONS,
    CREATE_IDENTITY,
    GENERATIONS_TABLE,
    IDENTITY_TABLE,
    refusal_of_generation,
    refusal_of_identity,
)
from txpool.resources.mysql.tables.own_tables import DENIED, NO_TABLE

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings
    from txpool.resources.mysql.session.protocol import Session

logger = logging.getLogger("txpool")

#: What shows it without that database, but not over JDBC.
BY_ROWS: Final = (
    "write xa.evidence = row: then each branch writes a row into the datasource's own database, which shows it"
)
_NO_DATABASE: Final = 1049
_MISSING: Final = DENIED | {NO_TABLE, _NO_DATABASE}
#: The datasources that were told of, by name and url. Of several threads, one tells.
_told: dict[tuple[str, str], object] = {}


def account_of(user: str) -> str:
    """What current_user() gives, as SQL has it: 'app'@'%'."""
    return "@".join("'" + part.replace("'", "''") + "'" for part in user.rpartition("@")[::2])


def identity_statements(account: str) -> tuple[str, ...]:
    """What an administrator of MariaDB executes, so that the account can read the server's identity."""
    return (
        *CREATE_IDENTITY,
        f"INSERT IGNORE INTO {IDENTITY_TABLE} VALUES (1, LEFT(SHA2(UUID(), 256), 24))",
        f"GRANT SELECT ON {IDENTITY_TABLE} TO {account}",
    )


def generation_statements(account: str, *, adds: bool = True) -> tuple[str, ...]:
    """What an administrator executes, so that the account can add a token, or only look for one, as recovery does."""
    return (
        *CREATE_GENERATIONS,
        f"GRANT {'SELECT, INSERT, DELETE' if adds else 'SELECT'} ON {GENERATIONS_TABLE} TO {account}",
    )


def warn_unproven(settings: DataSourceSettings, session: Session | Any, *, identified: bool) -> None:
    """Log once for each datasource of this process what will happen; `identified` if the identity can be read."""
    key, ours = (settings.name, settings.url), object()
    if _told.setdefault(key, ours) is not ours:
        return
    try:
        error = refusal_of_generation(session) if identified else refusal_of_identity(session)
        ((user,),) = session.run("select current_user()")
    except BaseException:
        del _told[key]
        raise
    account = account_of(str(user))
    logger.warning(
        "datasource %s: %s cannot keep the server's %s in the database txpool%s. So nothing shows what became of a "
        "branch that is gone: if a COMMIT was executed and its answer was lost, as when this process is killed just "
        "then, it will be recorded as a heuristic hazard (HeuristicHazard), even if nothing is torn.%s%s",
        settings.name,
        account,
        "generation" if identified else "identity and generation",
        "" if error is None else f" ({error})",
        _for_administrator(account, identified=identified) if _is_denied(error) else "",
        "" if settings.driver == "jdbc" else f" Or {BY_ROWS}.",
    )


def _is_denied(error: Exception | None) -> bool:
    """Whether a privilege or a table is missing, and not, as on a server that is read-only, something else."""
    return error is None or code_of(error) in _MISSING or getattr(error, "vendor_code", 0) in _MISSING  # over JDBC


def _for_administrator(account: str, *, identified: bool) -> str:
    identity = () if identified else identity_statements(account)
    statements = dict.fromkeys((*identity, *generation_statements(account)))
    return " Let an administrator execute, once:\n" + "".join(f"    {each};\n" for each in statements)

"""What `txpool check` finds of a REST catalog, and of the warehouse. It reads, but for what it makes in `_txpool`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from txpool.config.secrets import redact
from txpool.errors import described
from txpool.findings.finding import Finding, failure, ok, warning
from txpool.lake.rest.references import References

if TYPE_CHECKING:
    from txpool.config.settings import DataSourceSettings


def findings(settings: DataSourceSettings) -> Iterator[Finding]:
    """The findings about the server, and about the references there."""
    place = References(settings)
    try:
        identity, found, more = place.identity(), list(place.listed()), list(place.journals.findings())
    except Exception as error:
        yield failure("connection", f"{settings.name} cannot be used: {redact(described(error), settings.secrets)}")
        return
    yield from more
    ours = {xid.joined for xid, _, proven in found if proven}
    yield ok(
        "connection",
        f"{settings.name} is the catalog at {settings.catalog_uri}, and the warehouse {place.journals.root} with the "
        f"identity {identity}; {len(ours)} branches are prepared there",
    )
    foreign = [f"{'.'.join(each.table)}: {xid.joined}" for xid, each, proven in found if not proven]
    if foreign:
        yield warning(
            "owners",
            f"{len(foreign)} references have names like txpool's, and no proof: {', '.join(foreign)}",
            "whoever made them may have made up their names: they are listed, and never ended",
            "look who made them, and drop them by a catalog of your own",
        )

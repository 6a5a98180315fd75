"""What tells one piece of named work from another; no Spark is needed for it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from txpool.idempotency.once import UNKNOWN_FUNCTION, name_of

if TYPE_CHECKING:
    from tests.conftest import PythonWithout


def pay(number: int) -> None: ...


class Payer:
    def __call__(self, rows: Any) -> None: ...

    def pay(self, rows: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (pay, "pay"),
        (functools.partial(pay, 1), "pay"),
        (functools.partial(functools.partial(pay), 1), "pay"),
        (functools.wraps(pay)(lambda: None), "pay"),
        (Payer(), "Payer"),
        (Payer().pay, "Payer.pay"),
        (lambda: None, UNKNOWN_FUNCTION),
        (functools.partial(lambda _: None, 1), UNKNOWN_FUNCTION),
    ],
)
def test_what_a_function_is_called_is_the_same_in_each_run(function: Any, name: str) -> None:
    assert name_of(function) == name


def test_a_transaction_id_needs_no_spark(python_without: PythonWithout, tmp_path: Path) -> None:
    where = f"driver='sqlite3', mode='local', url='sqlite:///{tmp_path}/a.db'"
    source = (
        "import txpool\n"
        f"with txpool.DataSource(name='a', {where}) as a:\n"
        "    with txpool.transaction(transaction_id='x', record_in=a): pass\n"
        "    try: txpool.transaction(transaction_id='x', record_in=a).__enter__()\n"
        "    except txpool.AlreadyDone: raise SystemExit('told')\n"
    )
    assert python_without("pyspark", source).strip() == "told"

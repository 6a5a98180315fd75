"""An error that is quoted in another's text is told with its type: the message alone may be empty, or just 'k'."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import txpool
from tests.support.repository import ROOT
from txpool.errors import described

#: Errors whose messages are sentences of ours.
OURS = {
    "BehindPooler",
    "ConfigurationError",
    "Error",
    "LogError",
    "MessageError",
    "Refused",
    "ReplyTimeout",
    "UrlError",
    "XaError",
    "_Unreadable",
}
#: What is quoted without its type, and why.
PLAIN = {
    "recovery/operator/commands.py: ValueError": "our own sentence about a gtrid",
    "txpool/check/__init__.py: (Error, OSError)": "translated: most are sentences of ours",
    "txpool/control/client.py: (OSError, EOFError, MessageError)": "sentences of ours, and the operating system's",
    "txpool/demo/scenarios.py: Exception": "the type stands before it",
    "txpool/log/decisions.py: ValueError": "our own sentence about a damaged record",
    "txpool/resources/base.py: (TypeError, ValueError)": "our own sentence about a damaged record",
    "txpool/resources/jdbc/jvm/jvm.py: (RuntimeError, OSError)": "the virtual machine's own words",
    "txpool/resources/mysql/pymysql/reading.py: OSError": "PyMySQL's own text",
    "txpool/resources/driver/sessions.py: driver.module.Error": "it stays the driver's error",
}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KeyError("k"), "KeyError: 'k'"),
        (ValueError(), "ValueError"),
        (ValueError("  "), "ValueError"),
        (OSError("full"), "OSError: full"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_an_error_has_its_type(error: BaseException, told: str) -> None:
    assert described(error) == told


@pytest.mark.parametrize(("error", "told"), [(KeyError("k"), "KeyError: 'k'"), (ValueError(), "ValueError")])
def test_the_error_of_an_inner_block_and_of_a_callback(error: Exception, told: str) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(txpool.TransactionRolledBack) as raised, txpool.transaction():
        try:
            with txpool.transaction():
                raise error
        except type(error):
            pass
    assert f"was rolled back, since an inner block failed: {told}; nothing that was done" in str(raised.value)
    with pytest.raises(txpool.TransactionRolledBack) as raised, txpool.transaction() as transaction:
        transaction.before_completion(fail)
    assert f"since a before_completion callback failed: {told}; nothing that was done" in str(raised.value)


def quoted(path: Path) -> Iterator[str]:
    """The handlers that quote the error which they have caught by its message alone."""
    for handler in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(handler, ast.ExceptHandler) and handler.name and handler.type is not None:
            for node in ast.walk(handler):
                if isinstance(node, ast.FormattedValue) and ast.unparse(node.value) == handler.name:
                    yield ast.unparse(handler.type)


def test_no_message_is_quoted_alone() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {kind}"
        for package in ("txpool", "recovery")
        for path in (ROOT / package).rglob("*.py")
        for kind in quoted(path)
        if kind not in OURS
    }
    assert found == PLAIN.keys()


class WithoutWords(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_error_whose_own_text_fails_is_told_by_its_type() -> None:
    """Else its place would be taken by the error of its text."""
    assert described(WithoutWords()) == "WithoutWords, whose text has failed by RuntimeError"
    with pytest.raises(txpool.TransactionRolledBack, match="WithoutWords") as told, txpool.transaction():
        try:
            with txpool.transaction():
                raise WithoutWords
        except WithoutWords:
            pass
    assert isinstance(told.value.__cause__, WithoutWords)

"""The scanner of SQL text: made texts are read as they were made, any text in linear time, and by plain patterns."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.repository import ROOT
from txpool.sql.dialects import H2, MYSQL, OTHER, POSTGRESQL, SQLITE

DIALECTS = {"postgresql": POSTGRESQL, "mysql": MYSQL, "sqlite": SQLITE, "h2": H2, "other": OTHER}
_INSIDE = st.text(st.sampled_from(";'\"`$-/*#[]()%@\n abcEcommit"), max_size=12)


def _doubled(quote: str) -> st.SearchStrategy[tuple[str, str]]:
    return _INSIDE.map(lambda text: (f"{quote}{text.replace(quote, 2 * quote)}{quote}", "'" if quote == "'" else '"'))


def _dollars(text: str) -> tuple[str, str]:
    tag = "$q$" if "$" in text else "$$"
    return f"{tag}{text.replace('$q$', '')}{tag}", "'"


#: Text that begins a token, and the token.
PIECES = {
    "postgresql": [_doubled("'"), _doubled('"'), _INSIDE.map(_dollars)],
    "mysql": [_doubled("'"), _doubled("`")],
    "sqlite": [
        _doubled("'"),
        _doubled('"'),
        _doubled("`"),
        _INSIDE.map(lambda text: (f"[{text.replace(']', '')}]", '"')),
    ],
    "h2": [_doubled("'"), _doubled('"')],
    "other": [_doubled("'"), _doubled('"')],
}
_WORD = st.sampled_from(["select", "commit", "end", "t", "_x", "a1", "é"]).map(lambda word: (word, word))
_SIGN = st.sampled_from("+=,.<>").map(lambda sign: (sign, sign))
_COMMENT = st.one_of(
    _INSIDE.map(lambda text: f"/*{text.replace('*', '').replace('/', '')}*/"),
    _INSIDE.map(lambda text: "-- " + text.replace("\n", "") + "\n"),
    st.sampled_from([" ", "\t", "\n"]),
)


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=300)
@given(data=st.data())
def test_a_text_is_read_as_it_was_made(name: str, data: st.DataObject) -> None:
    token = st.one_of(_WORD, _SIGN, *PIECES[name])
    made = data.draw(st.lists(st.lists(token, max_size=6), min_size=1, max_size=4), label="statements")
    text, heads = "", []
    for number, statement in enumerate(made):
        text += ";" if number else ""
        for piece, _ in statement:
            text += data.draw(_COMMENT, label="before") + " " + piece + " "
        if statement:
            heads.append(" ".join(sign for _, sign in statement))
    read = [statement.head for statement in DIALECTS[name].readings[0].statements(text)]
    assert read == heads, text
    assert DIALECTS[name].readings[0].head(text) == (heads[0] if made[0] else "")


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=300)
@given(text=st.text(st.sampled_from("';\"`$-/*#[]()%@!\\\n aEx1;commit"), max_size=60))
def test_any_text_is_read(name: str, text: str) -> None:
    dialect = DIALECTS[name]
    assert dialect.transaction_commands[text] in {"", "COMMIT"}
    for statements in dialect.read(text):
        assert all(statement.head for statement in statements)
    assert len(dialect.without_literals(text)) <= 2 * len(text) + 4


PATHOLOGICAL = [
    " ",
    "/*",
    "--\n",
    "/* */",
    "/",
    "'",
    "''",
    "'a'",
    "';",
    "\\",
    "'\\",
    "\\'",
    '"',
    "`",
    "$",
    "$$",
    "$a",
    "$a$",
    "[",
    "(",
    ";",
    "a ",
    "a;",
    "%(",
    "%(a",
    "*/",
    "/*!",
    "*",
    "-",
    "-- ",
    "#",
    "@",
    "1",
    "E'",
    "begin ",
    "create begin;",
    "a b c d ",
]


@pytest.mark.parametrize("piece", PATHOLOGICAL)
@pytest.mark.parametrize("name", ["postgresql", "mysql"])
def test_the_time_grows_with_the_length(name: str, piece: str) -> None:
    """Were it quadratic, this would take hours."""
    dialect = DIALECTS[name]
    text = "commit " + piece * (200_000 // len(piece))
    assert dialect.transaction_commands[text] in ("", "COMMIT")
    assert len(dialect.without_literals(text)) <= 2 * len(text) + 4


def test_what_is_long_goes_by_in_runs() -> None:
    text = "insert into t values " + "('some text', 12.5, 'x@y.z; more')," * 20_000
    (statement,) = MYSQL.readings[0].statements(text)
    assert statement.certain
    assert statement.words == ["insert", "into", "t", "values"]


def patterns() -> Iterator[tuple[Path, str]]:
    """The string literals of the product's code."""
    for folder in ("txpool", "recovery"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            with path.open("rb") as file:
                for token in tokenize.tokenize(file.readline):
                    if token.type == tokenize.STRING and not token.string.startswith(('"""', 'r"""')):
                        yield path, token.string


_SET = re.compile(r"\[(?:\\.|[^\]\\])*\]")
_POSSESSIVE = re.compile(r"[*?+]\+|\d\}+\+|\(\?>")


def is_possessive(pattern: str) -> bool:
    return _POSSESSIVE.search(_SET.sub("[]", pattern)) is not None


def test_no_pattern_is_possessive_or_atomic() -> None:
    """Python 3.11 matches some of them wrongly before 3.11.4, in silence."""
    assert [f"{path.relative_to(ROOT)}: {literal}" for path, literal in patterns() if is_possessive(literal)] == []


@pytest.mark.parametrize("pattern", [r"[a]++", r"\s*+", r"(?:a)?+", r"(?>a)", r"(a){1,2}+", r"\w++=", r"[^']*+"])
def test_such_a_pattern_would_be_found(pattern: str) -> None:
    assert is_possessive(pattern)

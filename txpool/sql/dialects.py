"""How each database reads SQL text, as data, and which statements end or begin a transaction there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import Final

from txpool.sql.kept import KeptAnswers, text_of
from txpool.sql.scanner import Reading, Statement

# Whether any of these words is anywhere in a text: most texts have none, and are not scanned.
_HINT: Final = re.compile(r"commit|rollback|abort|end|begin|start|prepare", re.IGNORECASE)
# What may be a parameter by its name: a driver may put something else in its place. A plain name changes nothing.
_PARAMETER: Final = re.compile(r"%\([^)]*")
_NOT_PLAIN: Final = re.compile(r"\W")
# What a reading may take otherwise than another.
_DIFFERING: Final = ("\\", "/*", "[")
# The end of a word in a head.
_END: Final = r"(?= |\Z)"
_COMMAND: Final = re.compile(r"[a-z]+(?: (?:transaction|prepared|commit))?")


@dataclass(frozen=True)
class SqlDialect:
    """How a database reads SQL text. Immutable, and thread-safe."""

    #: Each way in which one of its modes, or of its versions, has it, the default first.
    readings: tuple[Reading, ...]
    #: Heads of statements that end the open transaction, or begin one, whatever follows.
    ends: str

    def first_words(self, text: str) -> str:
        """The head of a text's first statement, without parentheses or braces in front of its words."""
        return self.readings[0].head(text).lstrip("( {?=")

    def read(self, text: str, *, escapes: bool | None = None) -> Iterator[list[Statement]]:
        """The statements of a text, in each way to read it.

        `escapes` says whether a backslash in a literal is no character of its own; None if that is not known.
        """
        readings = self._readings_of(text)
        for reading in readings:
            if len(readings) == 1 or escapes in (None, bool(reading.backslash)):
                yield list(reading.statements(text))

    def any(self, text: str, test: Callable[[Statement], bool]) -> bool:
        """Whether some statement of a text meets a test, in any way to read it."""
        return any(any(map(test, statements)) for statements in self.read(text))

    def without_literals(self, text: str) -> str:
        """A text with `'…'` in place of each literal; it ends where the ways to read it part, with `…`."""
        texts = [reading.without_literals(text) for reading in self._readings_of(text)]
        if len(set(texts)) == 1:
            return texts[0]
        return "".join(each[0] for each in takewhile(lambda each: len(set(each)) == 1, zip(*texts, strict=False))) + "…"

    def bare(self, text: str) -> list[str]:
        """A text in each way to read it, with a space in place of each comment, and `''` in place of each literal."""
        return [reading.bare(text) for reading in self._readings_of(text)]

    @cached_property
    def transaction_commands(self) -> KeptAnswers[bytes | str, str]:
        """By statement, the command in its text that surely ends or begins a transaction, as `COMMIT`; empty if none.

        It may be one of several statements. What is surely so is so in each of the server's modes.
        """
        return KeptAnswers(self._command_of)

    def _command_of(self, statement: bytes | str) -> str:
        text = text_of(statement)
        if _HINT.search(text) is None:
            return ""
        commands = [self._command_as(reading, text) for reading in self._readings_of(text)]
        return commands[0] if all(commands) and not _has_odd_parameter(text) else ""

    def _command_as(self, reading: Reading, text: str) -> str:
        heads = [reading.head(text)] if ";" not in text and "/*" not in text else self._certain_heads(reading, text)
        for head in heads:
            if self._ends.match(head) is not None:
                command = _COMMAND.match(head)
                return "" if command is None else command[0].upper()
        return ""

    def _certain_heads(self, reading: Reading, text: str) -> list[str]:
        return [statement.head for statement in reading.statements(text) if statement.certain]

    def _readings_of(self, text: str) -> tuple[Reading, ...]:
        """Those that may differ: only by what a backslash is, by how comments nest, or by names in `[]`."""
        return self.readings if any(mark in text for mark in _DIFFERING) else self.readings[:1]

    @cached_property
    def _ends(self) -> re.Pattern[str]:
        return re.compile(self.ends)


def _has_odd_parameter(text: str) -> bool:
    return any(_NOT_PLAIN.search(name, 2) is not None for name in _PARAMETER.findall(text))


_POSTGRESQL: Final = Reading(
    e_literals=True,
    dollar_tag=r"(?:[A-Za-z_\x80-\U0010ffff][A-Za-z_0-9\x80-\U0010ffff]*)?",
    line_comment=r"--|\x00(?s:.*)",  # the C library sends nothing of what is behind a NUL
    line_end=r"\n\r",
    nested=True,
    contains=r"create\b.*\bbegin atomic\b",  # a function's body: BEGIN ATOMIC … ; … END
)
#: standard_conforming_strings is on, and off. `PREPARE transaction AS …` prepares a statement of that name.
POSTGRESQL: Final = SqlDialect(
    (_POSTGRESQL, replace(_POSTGRESQL, backslash="'")),
    rf"(?:commit|end|abort|begin){_END}|rollback{_END}(?!(?: work| transaction)? to{_END})|start transaction{_END}"
    r"|prepare transaction (?:u & )?'",
)

_MYSQL: Final = Reading(
    literals="'\"",
    backslash="'\"",
    names="`",
    line_comment=r"--(?=[\x00-\x20\x7f]|\Z)|#",
    code_comments=True,
    contains=r"(?:create|alter)\b.*\b(?:procedure|function|trigger|event|package|body)\b"
    r"|(?:set statement\b.* for )?(?:begin|if|case|for|loop|repeat|while|declare)\b"
    r"|\w+ (?:begin|loop|repeat|while|for)\b",
)
_ANSI_QUOTES: Final = replace(_MYSQL, literals="'", names='"`', backslash="'")
#: Without a mode; NO_BACKSLASH_ESCAPES; ANSI_QUOTES; MariaDB's mode MSSQL. MariaDB's BEGIN NOT ATOMIC is a program, and
#: so is BEGIN … END in its mode ORACLE.
MYSQL: Final = SqlDialect(
    (_MYSQL, replace(_MYSQL, backslash=""), _ANSI_QUOTES, replace(_ANSI_QUOTES, names='"`[')),
    rf"commit{_END}|rollback{_END}(?!(?: work)? to{_END})|begin(?: work)?\Z|start transaction{_END}",
)

#: SQLite has one way. A BEGIN is left out here: inside a transaction it is absorbed.
SQLITE: Final = SqlDialect(
    (Reading(names='"`[', more_spaces="\ufeff", contains=r"create (?:temp |temporary )?trigger\b"),),
    rf"(?:commit|end){_END}|rollback{_END}(?!(?: transaction(?: \S+)?)? to{_END})",
)

_STANDARD: Final = Reading(line_end=r"\n\r", nested=True)
#: H2's comments may be nested, or not, by its version.
H2: Final = SqlDialect(
    tuple(
        replace(_STANDARD, names='"`', dollar_tag="", line_comment="--|//", nested=nested) for nested in (True, False)
    ),
    rf"(?:commit|begin){_END}|rollback{_END}(?!(?: work)? to{_END})|start transaction{_END}|prepare commit{_END}",
)

#: Any other database: what may be anything elsewhere, as BEGIN, is not certain, nor is what follows a `;`.
OTHER: Final = SqlDialect(
    tuple(replace(_STANDARD, nested=nested, contains=r"") for nested in (True, False)),
    rf"commit{_END}(?! tran)|rollback(?: work)?\Z|start transaction{_END}",
)

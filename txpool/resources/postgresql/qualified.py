"""SQL in which every function, operator, type and table has its schema.

PostgreSQL looks a name without one up on the search path, and of the functions and operators of all schemas there it
takes the one whose arguments fit best. Whoever may create in a schema of the path can so have a function of theirs run
as the session's role: `oid = to_regclass('t')` finds a stranger's `=(oid, regclass)` before the catalogue's `=(oid,
oid)`. A user's statements and triggers need the user's path, and so it stays as it is. Instead every statement of
txpool's goes through `qualified`, when it is imported: the SQL stays readable, and the server gets the schemas.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, LiteralString

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*)
    |(?P<text>'(?:[^']|'')*'|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
    |(?P<operand>%\(\w+\)s|%s|\$\d+|\?|\{[^{}]*\}|\d[\w.]*)
    |(?P<name>"(?:[^"]|"")*"|[^\W\d][\w$]*)
    |(?P<cast>::)
    |(?P<mark>[(),;.\[\]:])
    |(?P<operator>(?:%%|[-+*/<>=~!@\#%^&|`])+)""",
    re.VERBOSE | re.DOTALL,
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words of SQL that are no names. What stands before a parenthesis and is none of these is a function.
_WORDS: Final = _words(
    """all and any array as asc begin by case check coalesce column commit conflict copy create cross current_role
    current_timestamp current_user default deferrable delete desc distinct do drop else end except excluded exists
    extract false filter for from full group having if index inner insert intersect interval into is isolation join key
    lateral left level limit local lock materialized mode not nothing null offset on operator or order outer over
    overriding partition prepare prepared primary read recursive references release returning right rollback row
    savepoint select session session_user set share stdin stdout table then to transaction true union unique unlogged
    update values when where with within"""
)
# Types that the grammar itself has, and takes from the catalogue.
_TYPES: Final = _words(
    """bigint bit boolean char character dec decimal double float int integer interval national nchar numeric real
    smallint time timestamp varchar"""
)
# They look an operator up on the path, and cannot name its schema; or their syntax is not understood here.
_HIDDEN: Final = {
    "in": "= any (array[…]), = any (select …) or <> all (select …)",
    "cast": "::",
    "between": ">= and <=",
    "like": "~~, or starts_with()",
    "ilike": "~~*",
    "similar": "~",
    "nullif": "case when … = … then null else … end",
    "using": "on",
    "natural": "join … on",
}
#: Behind these, a new expression begins.
_BREAKS: Final = _words(
    """and as by case cross else end for from group having is join left limit not on or order returning select set then
    union values when where"""
)
_ASSIGNS: Final = _words("set local session , (")
_LOCK_MODES: Final = _words("row share access exclusive")


def qualified(sql: LiteralString, tables: Mapping[str, str] | None = None) -> LiteralString:
    """The statement with the schema pg_catalog before each name that has none; `tables` have another.

    ValueError if that is not possible: the message says what to write. Every operator has the same precedence with
    its schema, so that two in one expression need parentheses.
    """
    return _Statement(sql, tables or {}).qualified()


@lru_cache(maxsize=256)
def spelled(sql: str) -> str:
    """As `qualified`, of a statement with names that are known later. Thread-safe; the last 256 are kept."""
    return _Statement(sql, {}).qualified()


class _Statement:
    """A statement, word by word. Spaces are words, too."""

    def __init__(self, sql: str, tables: Mapping[str, str]) -> None:
        self._tables = tables
        self._kinds: list[str] = []
        self._words: list[str] = []
        position = 0
        while position < len(sql):
            found = _TOKEN.match(sql, position)
            if found is None:
                raise ValueError(f"{sql[position : position + 20]!r} is not understood, in: {sql}")
            self._kinds.append(str(found.lastgroup))
            self._words.append(found[0])
            position = found.end()
        self._sql = sql
        #: The positions of all words but spaces.
        self._spoken = [at for at, kind in enumerate(self._kinds) if kind != "space"]

    def qualified(self) -> str:
        words = [*self._words]
        #: By depth of parentheses: whether the expression has an operator, and whether `set` assigns here.
        operators, assigns = [False], [False]
        for number, at in enumerate(self._spoken):
            word, kind = self._words[at].lower(), self._kinds[at]
            if kind == "mark":
                if word in "([":
                    operators.append(False)
                    assigns.append(word == "(" and self._word(number - 1) == "with")
                elif word in ")]":
                    operators.pop()
                    assigns.pop()
                elif word in ",;":
                    operators[-1] = False
                    assigns[-1] = assigns[-1] and word == ","
            elif kind == "name":
                self._require_open(number, word)
                if word in _BREAKS:
                    operators[-1] = False
                    assigns[-1] = word == "set" or (assigns[-1] and word not in ("where", "from", "returning"))
                if word == "operator":
                    self._require_one(operators, number)
                words[at] = self._name(number)
            elif kind == "text" and self._word(number + 1) == "::" and self._word(number + 2) == "regclass":
                words[at] = self._regclass(self._words[at][1:-1])
            elif kind == "operator" and not self._is_no_operator(number, assigning=assigns[-1]):
                self._require_one(operators, number)
                words[at] = f"operator(pg_catalog.{self._words[at]})"
        return "".join(words)

    def _word(self, number: int) -> str:
        return self._words[self._spoken[number]].lower() if 0 <= number < len(self._spoken) else ""

    def _kind(self, number: int) -> str:
        return self._kinds[self._spoken[number]] if 0 <= number < len(self._spoken) else ""

    def _shown(self, number: int) -> str:
        return repr("".join(self._words[self._spoken[number] :])[:60])

    def _require_one(self, operators: list[bool], number: int) -> None:
        if operators[-1]:
            raise ValueError(f"two operators without parentheses, at {self._shown(number)}")
        operators[-1] = True

    def _require_open(self, number: int, word: str) -> None:
        """ValueError if a word hides an operator."""
        before = self._word(number - 1)
        hidden = None if before == "." or self._word(number + 1) in _LOCK_MODES else _HIDDEN.get(word)
        if word == "distinct" and before in ("is", "not"):
            hidden = "case, with is null"
        elif word == "case" and self._word(number + 1) != "when":
            hidden = "case when … = …"
        if hidden is not None:
            raise ValueError(f"write {hidden} in place of {word}, at {self._shown(number)}")

    def _name(self, number: int) -> str:
        word, lower = self._words[self._spoken[number]], self._word(number)
        before, after = self._word(number - 1), self._word(number + 1)
        if before == "." or after == ".":
            return word
        if before == "::":
            return word if lower in _TYPES else f"pg_catalog.{word}"
        if lower in self._tables:
            return self._tables[lower]
        if lower in _WORDS and not (after == "(" and lower in ("left", "right")):
            return word
        if after == "(" and lower not in _TYPES:
            return f"pg_catalog.{word}" if self._is_function(number) else word
        is_alias = before in ("as", ")") or (self._kind(number - 1) == "name" and before not in _WORDS)
        return f"pg_catalog.{word}" if lower.startswith("pg_") and not is_alias else word

    def _regclass(self, name: str) -> str:
        whole = self._tables.get(name, f"pg_catalog.{name}" if name.startswith("pg_") and "." not in name else name)
        return "'" + whole.replace("'", "''") + "'"

    def _is_function(self, number: int) -> bool:
        """Whether a name before a parenthesis is a function: no table with its columns, and no alias."""
        before = self._word(number - 1)
        if before in ("into", ")", "as", "table") or (before == "exists" and self._word(number - 2) == "not"):
            return False
        if self._kind(number - 1) == "name" and before not in _WORDS:
            return False
        if before in ("with", "recursive", ","):
            end = self._end_of_parentheses(number + 1)
            return (self._word(end + 1), self._word(end + 2)) not in (("as", "("), ("as", "materialized"))
        return True

    def _end_of_parentheses(self, number: int) -> int:
        depth = 0
        for end in range(number, len(self._spoken)):
            depth += {"(": 1, ")": -1}.get(self._word(end), 0)
            if depth == 0:
                return end
        raise ValueError(f"a parenthesis stays open: {self._sql}")

    def _is_no_operator(self, number: int, *, assigning: bool) -> bool:
        """Whether it has its schema already, is the star of all columns, a sign, or assigns."""
        word, before, after = (self._word(number + step) for step in (0, -1, 1))
        if before == "." or (before == "(" and self._word(number - 2) == "operator"):
            return True
        if word == "*" and (before in ("(", "select", ",", "distinct", "unlisten") or after in ("from", ")", ",", "")):
            return True
        if word == "-" and (before in ("", "(", ",", "[") or self._ends_operator(number - 1)):
            return True
        return word == "=" and (assigning or self._word(0) == "set") and self._assigned(number - 1)

    def _ends_operator(self, number: int) -> bool:
        """Whether an operator ends here, with its schema or without."""
        return self._kind(number) == "operator" or (self._word(number), self._word(number - 5)) == (")", "operator")

    def _assigned(self, number: int) -> bool:
        """Whether what ends here is a name that gets a value."""
        while self._word(number - 1) == ".":
            number -= 2
        return self._word(number - 1) in _ASSIGNS

"""A scanner of SQL text: its statements, and the words of each, without what is in comments and in quotes.

Its time grows with the text's length, whatever the text: nothing in its patterns can fail behind a repetition but what
has run over one literal, and so no search goes back and tries again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

#: The most tokens of a statement's head.
HEAD: Final = 8
#: Tokens that stand for any literal, any name in quotes, what a quote begins and nothing ends, the beginning of code in
#: a comment, and a statement's end.
LITERAL: Final = "'"
QUOTED_NAME: Final = '"'
OPEN: Final = "'…"
CODE: Final = "/*!"
END: Final = ";"

_SPACES: Final = r" \t\n\r\f\v"
_LETTER: Final = r"A-Za-z_\x80-\U0010ffff"
_COMMENT_MARK: Final = re.compile(r"/\*|\*/")
#: Where a literal with this quote, or a backslash in it, may end.
_MARKS: Final = {quote: re.compile(rf"[{quote}\\]") for quote in "'\"`"}
# How many pieces one match runs over: it keeps a note of each.
_RUN: Final = 500
# A statement that has more words is not known to its end.
_MOST_WORDS: Final = 10_000
# Statements that may be long, and have neither statements in them nor a `;` within parentheses.
_LONG: Final = frozenset({"insert", "replace", "values", "select", "with", "update", "delete", "merge", "("})


class Statement(NamedTuple):
    """One statement of a text."""

    #: Its first tokens, in small letters, with one space between them.
    head: str
    #: All its words, in small letters, those of the head among them, with `@` and `@@` where they stand.
    words: list[str]
    #: Whether the server surely takes it for a statement, which begins here, and has these words and no others. False
    #: in and behind a comment that is code, and behind a statement that may contain others.
    certain: bool


@dataclass(frozen=True)
class Reading:
    """One way to read a text: that of one database in one of its modes. Immutable, and thread-safe."""

    #: The quotes of literals, and those in which a backslash is no character of its own.
    literals: str = "'"
    backslash: str = ""
    #: E'…' is a literal with backslashes in any mode.
    e_literals: bool = False
    #: The quotes of names; `]` ends what `[` begins.
    names: str = '"'
    #: Characters that are white space beside those that are everywhere.
    more_spaces: str = ""
    #: What a dollar quote may have between its two signs, as a pattern; None if there are none.
    dollar_tag: str | None = None
    #: The beginnings of comments to the line's end, as a pattern, and the characters that end the line.
    line_comment: str = "--"
    line_end: str = r"\n"
    #: Comments between /* and */ may contain others.
    nested: bool = False
    #: What follows /*! or /*M!, and a number, is code.
    code_comments: bool = False
    #: A statement whose words are so may have others in it: what follows a `;` may still be a part of it.
    contains: str = r"(?!)"

    @cached_property
    def _token(self) -> re.Pattern[str]:
        quotes = re.escape(self.literals + self.names)
        e_literal = "[eE]'|" if self.e_literals else ""
        code = r"/\*[Mm]?!\d*|\*/" if self.code_comments else "(?!)"
        dollar = "(?!)" if self.dollar_tag is None else rf"\$(?:{self.dollar_tag})\$"
        return re.compile(
            rf"(?P<space>(?:[{_SPACES}{self.more_spaces}]+|(?:{self.line_comment})[^{self.line_end}]*){{1,{_RUN}}})"
            rf"|(?P<code>{code})|(?P<comment>/\*)|(?P<dollar>{dollar})|(?P<quote>{e_literal}[{quotes}])"
            rf"|(?P<word>[{_LETTER}][{_LETTER}0-9$]*)|(?P<number>[0-9][{_LETTER}0-9.]*)|(?P<sign>@@|.)",
            re.DOTALL,
        )

    @cached_property
    def _run(self) -> re.Pattern[str]:
        """What needs no step of its own: numbers, signs, and literals without a backslash or a quote in them."""
        literals = "|".join(rf"{each}[^{each}\\]*{each}(?!{each})" for each in self.literals)
        quotes = re.escape(self.literals + self.names)
        return re.compile(rf"(?:[^{_LETTER}{quotes};/#$@*-]+|{literals}){{1,{_RUN}}}")

    @cached_property
    def _contains(self) -> re.Pattern[str]:
        return re.compile(self.contains)

    def head(self, text: str) -> str:
        """The head of the first statement; empty if a text begins with none, or a quote in it has no end."""
        head: list[str] = []
        for piece in self._tokens(text):
            if piece == OPEN:
                return ""
            if piece == END or len(head) == HEAD:
                break
            head.append(piece)
        return " ".join(head)

    def statements(self, text: str) -> Iterator[Statement]:
        """The statements of a text, in order. What is in a comment that is code counts as one that begins there."""
        head: list[str] = []
        words: list[str] = []
        certain, depth = True, 0
        for piece in self._tokens(text):
            if piece in (END, CODE):
                certain = certain and piece == END and len(words) < _MOST_WORDS
                if head:
                    yield Statement(" ".join(head), words, certain)
                    # Between parentheses there may be statements, too, as in a rule of PostgreSQL's.
                    certain = certain and depth == 0 and self._contains.match(" ".join(words)) is None
                head, words, depth = [], [], 0
                continue
            certain = certain and piece != OPEN
            if len(head) < HEAD:
                head.append(piece)
            if (piece[0].isalpha() or piece[0] in "_@") and len(words) < _MOST_WORDS:
                words.append(piece)
            elif head[0] not in _LONG:
                depth += (piece == "(") - (piece == ")")
        if head:
            yield Statement(" ".join(head), words, certain and len(words) < _MOST_WORDS)

    def without_literals(self, text: str) -> str:
        """A text with `'…'` in place of each literal. What is in comments stays."""
        pieces: list[str] = []
        place = shown = 0
        while (found := self._token.match(text, place)) is not None:
            kind, place = found.lastgroup, found.end()
            if kind == "comment":
                place = self._comment_end(text, place)
            elif kind in ("quote", "dollar"):
                place = self._end(text, found)
                if self._is_literal(found):
                    pieces += text[shown : found.start()], "'…'"
                    shown = place
        return "".join([*pieces, text[shown:]])

    def bare(self, text: str) -> str:
        """A text with a space in place of each comment, and `''` in place of each literal."""
        pieces: list[str] = []
        place = 0
        while (found := self._token.match(text, place)) is not None:
            kind, start, place = found.lastgroup, place, found.end()
            if kind == "comment":
                place = self._comment_end(text, place)
            elif kind in ("quote", "dollar"):
                place = self._end(text, found)
            is_left_out = kind in ("space", "comment")
            is_literal = kind in ("quote", "dollar") and self._is_literal(found)
            pieces.append(" " if is_left_out else "''" if is_literal else text[start:place])
        return "".join(pieces)

    def _tokens(self, text: str) -> Iterator[str]:
        """The tokens of a text; behind the head of a long statement only words, and some signs."""
        find, run = self._token.match, self._run.match
        place, length, count, is_long, in_code = 0, len(text), 0, False, False
        while place < length:
            if is_long and count >= HEAD and (ahead := run(text, place)) is not None:
                place = ahead.end()
                continue
            found = find(text, place)
            if found is None:  # not possible: any character is a sign
                return
            kind, piece, place = found.lastgroup, found[0], found.end()
            if kind == "space":
                continue
            if kind == "comment":
                place = self._comment_end(text, place)
                continue
            if kind == "code" and piece == "*/":
                if in_code:
                    in_code = False
                    continue
                piece, place = "*", place - 1
            elif kind == "code":
                piece, in_code = CODE, True
            elif kind == "word":
                piece = piece.lower()
            elif kind in ("quote", "dollar"):
                place = self._end(text, found)
                quoted = LITERAL if self._is_literal(found) else QUOTED_NAME
                piece = quoted if place <= length else OPEN
            count = 0 if piece in (END, CODE) else count + 1
            if count == 1:
                is_long = piece in _LONG
            yield piece

    def _comment_end(self, text: str, place: int) -> int:
        """The end of a comment, from behind its beginning; the text's end if it has none."""
        if not self.nested:
            end = text.find("*/", place)
            return len(text) if end < 0 else end + 2
        depth = 1
        for mark in _COMMENT_MARK.finditer(text, place):
            depth += 1 if mark[0] == "/*" else -1
            if depth == 0:
                return mark.end()
        return len(text)

    def _is_literal(self, opened: re.Match[str]) -> bool:
        return opened.lastgroup == "dollar" or opened[0][-1] in self.literals

    def _end(self, text: str, opened: re.Match[str]) -> int:
        """The end of a literal or a name in quotes; one behind the text's end if it has none."""
        if opened.lastgroup == "quote":
            return self._quote_end(text, opened.end(), opened[0])
        end = text.find(opened[0], opened.end())
        return len(text) + 1 if end < 0 else end + len(opened[0])

    def _quote_end(self, text: str, place: int, opened: str) -> int:
        quote = opened[-1]
        if quote == "[":
            end = text.find("]", place)
            return len(text) + 1 if end < 0 else end + 1
        escapes = len(opened) > 1 or quote in self.backslash
        while (mark := _MARKS[quote].search(text, place)) is not None:
            place = mark.end()
            if mark[0] == "\\":
                place += escapes
            elif text[place : place + 1] == quote:
                place += 1
            else:
                return place
        return len(text) + 1

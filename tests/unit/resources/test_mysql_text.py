"""Which statements of MariaDB and MySQL command a branch, or may commit, by their text."""

from __future__ import annotations

import pytest

from txpool.resources.mysql.session.statement_text import changes_session, commands_branch, may_commit, text_of

COMMANDS = (
    "xa start 'a'",
    " XA\tEND 'a','b',1",
    "/* a comment */ xa /* another */ commit 'a' one phase",
    "-- a line\nxa prepare 'a'",
    "(xa rollback 'a')",
    "select 1; xa begin 'a'",
    "/*myapp*/ xa end 'a'",
    "/*Monthly*/XA COMMIT 'a' one phase",
    "/*! xa start 'a' */",
    "/*!50000 xa start 'a' */",
    "/*M!100100 xa start 'a' */",
    "/*! select 1 */; xa start 'a'",
    "select ';'; xa start 'a'",
    "select 1 - -1, 'it''s', \"\\\"\", `a``b` /* ; */ -- ;\n # ;\n; xa start 'a'",
)
COMMANDS_NOTHING = (
    "",
    "xa recover",
    "xa recover convert xid",
    "xanadu",
    "select 'xa start'",
    "insert into t values ('; xa start ''a''')",
    'insert into t values ("; xa end")',
    "insert into t values ('\\'; xa end')",
    "select 1 -- ; xa start 'a'",
    "select 1 # ; xa start 'a'",
    "select 1 /* ; xa start 'a' */",
    "select `; xa start`",
    "insert into t values " + "('; xa end')," * 5000 + "(1)",
)


@pytest.mark.parametrize("statement", COMMANDS)
def test_it_commands_a_branch(statement: str) -> None:
    assert commands_branch(text_of(statement))
    assert commands_branch(text_of(statement.encode()))


@pytest.mark.parametrize("statement", COMMANDS_NOTHING)
def test_it_commands_none(statement: str) -> None:
    assert not commands_branch(text_of(statement))
    assert not commands_branch(text_of(statement.encode()))


@pytest.mark.parametrize(
    "statement",
    [
        "call p()",
        "/* a */ CALL p()",
        "/*myapp*/ create table x (i int)",
        "insert into t values ('c:\\'); commit",
        "execute s",
        "execute immediate 'commit'",
        "begin not atomic commit; end",
        "if 1 then commit; end if",
        "a: loop commit; leave a; end loop",
        "while 1 do commit; end while",
        "select 1; call p()",
        "stop slave",
        "unlock tables",
    ],
)
def test_it_may_commit(statement: str) -> None:
    assert may_commit(text_of(statement))


@pytest.mark.parametrize(
    "statement",
    [
        "select 1",
        "insert into t values ('a {} ; color: red; if (1) {}')",
        "insert into t values ('call')",
        "savepoint a",
        "set @a := 1",
        "prepare s from 'commit'",
        "callus",
        "create temporary table t (i int)",
        "load data infile 'x' into table t",
        "select @a:=1",
    ],
)
def test_it_commits_nothing(statement: str) -> None:
    assert not may_commit(text_of(statement))


@pytest.mark.parametrize("comment", ["/* a */", "/*myapp*/", "/*main.py:12*/", "/*M*/"])
def test_a_comment_changes_no_session(comment: str) -> None:
    assert not changes_session(text_of(f"{comment} select 1"))
    assert changes_session(text_of(f"{comment} set @a = 1"))

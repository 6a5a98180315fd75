"""Which texts surely end or begin a transaction, in each database's way to read them. Others are sent."""

from __future__ import annotations

import pytest

from txpool.sql.dialects import H2, MYSQL, OTHER, POSTGRESQL, SQLITE, SqlDialect

ENDS: list[tuple[SqlDialect, str, str]] = [
    *(
        (POSTGRESQL, statement, command)
        for statement, command in [
            ("commit", "COMMIT"),
            ("  COMMIT WORK ;", "COMMIT"),
            ("/*x*/ commit", "COMMIT"),
            ("/* /* nested */ still */ -- and\n end", "END"),
            ("END TRANSACTION", "END TRANSACTION"),
            ("commit and chain", "COMMIT"),
            ("abort", "ABORT"),
            ("rollback", "ROLLBACK"),
            ("rollback work and no chain", "ROLLBACK"),
            ("rollback\n--\nprepared 'x'", "ROLLBACK PREPARED"),
            ("commit prepared 'x'", "COMMIT PREPARED"),
            ("prepare transaction 'x'", "PREPARE TRANSACTION"),
            ("prepare transaction E'x'", "PREPARE TRANSACTION"),
            ("prepare transaction u&'x'", "PREPARE TRANSACTION"),
            ("prepare transaction $$x$$", "PREPARE TRANSACTION"),
            ("begin", "BEGIN"),
            ("begin isolation level serializable", "BEGIN"),
            ("start transaction read only", "START TRANSACTION"),
            (";;commit", "COMMIT"),
            ("insert into t values (1); commit", "COMMIT"),
            ("select 'it''s; $$'; /* ; */ end", "END"),
            ("select $a$;$$;commit$a$; commit; select 1", "COMMIT"),
            ("create table x (i int); rollback", "ROLLBACK"),
            ("create table x (begin timestamp, until timestamp); commit", "COMMIT"),
            ("select 1 --\r; commit", "COMMIT"),
            (r"select E'\'; '; commit", "COMMIT"),
            ("insert into t values (%s, %(name)s); commit", "COMMIT"),
            ("commit \0 'open", "COMMIT"),
            ('select U&"d\\0061t" from t; commit', "COMMIT"),
            ("insert into t values " + "('a''b', $$;$$, 1)," * 2000 + "(1); commit", "COMMIT"),
        ]
    ),
    *(
        (MYSQL, statement, command)
        for statement, command in [
            ("commit", "COMMIT"),
            ("COMMIT AND CHAIN", "COMMIT"),
            ("# a\ncommit", "COMMIT"),
            ("-- a\n/* b */rollback release", "ROLLBACK"),
            ("begin", "BEGIN"),
            ("begin work;", "BEGIN"),
            ("start transaction with consistent snapshot", "START TRANSACTION"),
            ("select ';', \";\", `;`; commit", "COMMIT"),
            (r"select 'a\n'; commit", "COMMIT"),
            ("create table x (i int); commit", "COMMIT"),
        ]
    ),
    *(
        (SQLITE, statement, command)
        for statement, command in [
            ("commit", "COMMIT"),
            ("end", "END"),
            ("END TRANSACTION", "END TRANSACTION"),
            ("rollback transaction a", "ROLLBACK TRANSACTION"),
            (";commit", "COMMIT"),
            ("/* /* */ commit", "COMMIT"),
            ("-- a\ncommit", "COMMIT"),
        ]
    ),
    (H2, "// a\ncommit", "COMMIT"),
    (H2, "rollback", "ROLLBACK"),
    (H2, "insert into t values (1); commit", "COMMIT"),
    (H2, "prepare commit a", "PREPARE COMMIT"),
    (H2, "commit transaction a", "COMMIT TRANSACTION"),
    (OTHER, "commit", "COMMIT"),
    (OTHER, "/* a */ rollback work", "ROLLBACK"),
]
SENT: list[tuple[SqlDialect, str]] = [
    *(
        (POSTGRESQL, statement)
        for statement in [
            "",
            ";",
            "select 1",
            "savepoint a",
            "release a",
            "rollback to a",
            "ROLLBACK/**/WORK TO SAVEPOINT a",
            "rollback transaction to a",
            "prepare transaction as select 1",
            "prepare transaction (int) as select $1",
            "prepare commit as select 1",
            "execute commit",
            "deallocate commit",
            "committed",
            "commit$x",
            "commitº",
            '"commit"',
            "select 'a;commit'",
            'select 1 as "a;commit"',
            "select $$;commit$$",
            "select $a$;$$;commit;$a$",
            "select 1 -- ; commit",
            "select 1 /* ; commit /* */ ; commit */",
            "select case when true then 1 end",
            "do $$ begin commit; end $$",
            "create function f() returns int begin atomic select 1; end",
            "create function f() returns int begin/**/\nATOMIC select 1; end",
            "create or replace procedure p() language sql begin atomic select 1; end; commit",
            "create rule r as on insert to t do also (delete from x; commit)",
            "select e'\\'; commit; --'",
            # What standard_conforming_strings changes.
            "select 'a\\'; commit; --'",
            "select 'a\\'; commit",
            "select '\\''; commit",
            # What a driver may change.
            "commit /* %(;) */",
            "select %(it's)s; commit",
            "commit 'open",
        ]
    ),
    *(
        (MYSQL, statement)
        for statement in [
            "rollback to a",
            "rollback work to savepoint a",
            "begin not atomic commit; end",
            "begin select 1; end",
            "start slave",
            "start replica",
            "--commit",
            "select 1 # ; commit",
            "select 1 -- ; commit",
            "/*! commit */",
            "/*M!100100 commit */",
            "/*! select 1 */; commit",
            "select 2*/*; commit*/3",
            "create procedure p() begin commit; end",
            "create trigger a before insert on t for each row begin set @a = 1; commit; end",
            "if 1 then commit; end if",
            "a: loop commit; leave a; end loop",
            "set statement max_statement_time=1 for begin not atomic if 0 then select 1; commit; end if; end",
            "select 5 --\x7f ; commit",
            # What the mode MSSQL of MariaDB changes.
            "select 1 as [a; commit; b]",
            # What NO_BACKSLASH_ESCAPES changes, and ANSI_QUOTES.
            "insert into t values ('\\'; commit; --')",
            "insert into t values ('c:\\'); commit",
            'select "a\\"; commit; --"',
        ]
    ),
    *(
        (SQLITE, statement)
        for statement in [
            "begin",
            "rollback to a",
            "rollback transaction to savepoint a",
            "rollback transaction b to a",
            "create temp trigger a after insert on t begin delete from u; end",
            "create trigger a after insert on t begin delete from u; end",
            "select [;commit]",
            "select `;commit`",
            "select 1 /* ; commit",
        ]
    ),
    (H2, "rollback to savepoint a"),
    (H2, "select $$;commit$$"),
    (H2, "select 1 /* /* */ ; commit /* */ */"),
    (OTHER, "begin insert into t values (1); commit; end;"),
    (OTHER, "select 1; commit"),
    (OTHER, "commit tran a"),
    (OTHER, "rollback tran a"),
]


@pytest.mark.parametrize(("dialect", "statement", "command"), ENDS, ids=lambda each: str(each)[:40])
def test_it_surely_ends_or_begins_one(dialect: SqlDialect, statement: str, command: str) -> None:
    assert dialect.transaction_commands[statement] == command
    assert dialect.transaction_commands[statement.encode()] == command
    for swapped in (statement.upper(), f"\t\n{statement}", f"{statement} "):
        if "$a$" not in statement:
            assert dialect.transaction_commands[swapped] == command


@pytest.mark.parametrize(("dialect", "statement"), SENT, ids=lambda each: str(each)[:40])
def test_it_is_not_certain(dialect: SqlDialect, statement: str) -> None:
    assert dialect.transaction_commands[statement] == ""
    assert dialect.transaction_commands[statement.encode()] == ""


def test_the_secrets_of_a_statement_are_hidden() -> None:
    hide = POSTGRESQL.without_literals
    assert hide("select 'a', $$b$$, E'c\\'d', $x$e$x$, \"f\" -- 'g'") == "select '…', '…', '…', '…', \"f\" -- 'g'"
    assert hide("alter role a password 'open") == "alter role a password '…'"
    assert hide("select 1, 'a\\', 'secret'") == "select 1, '…'…", "by standard_conforming_strings it may go on"

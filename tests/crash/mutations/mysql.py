"""MariaDB and MySQL: the lines of their branch, of its second phase and of their marks, each left out once."""

from __future__ import annotations

from tests.crash.mutating import Edit, Mutation

_BRANCH = "txpool.resources.mysql.branches.branch:MySQLBranch."
_NAMED = "txpool.resources.branches.branch:BranchNamedAtStart."
_COMMAND = "txpool.resources.branches.phase_two:PhaseTwoCommand."
_PHASE_TWO = "txpool.resources.mysql.branches.phase_two:MySQLPhaseTwo."
_MARKS = "txpool.resources.mysql.tables.marks:"
_DRIVER = "txpool.resources.mysql.driver:MySQLDriver."
_PYMYSQL = "txpool.resources.mysql.pymysql.connection:PyMySQLRawConnection."
_FOLDER = "tests/integration/resources/mysql/"
_ONE, _TWO, _MARKED = (f"{_FOLDER}test_{name}.py::" for name in ("phase_one", "phase_two", "marked"))
_SESSIONS, _TRANSACTIONS, _POOLERS = (f"{_FOLDER}test_{name}.py::" for name in ("sessions", "transactions", "poolers"))

MUTATIONS = (
    Mutation(
        "mysql-name",
        "a later name takes the place of the one that XA START has sent",
        test=_ONE + "test_the_first_name_stays_whoever_decides_later",
        real=(Edit(_NAMED + "name", 'if getattr(self, "record", None) is None:', "if True:"),),
    ),
    Mutation(
        "mysql-ahead",
        "a statement counts as a part of the branch that XA START, ahead of it, has not begun",
        test=_ONE + "test_where_the_server_refuses_to_begin_nothing_stays[pymysql-mariadb-insert]",
        real=(Edit(_PYMYSQL + "_read_ahead", "self.break_off()\n            raise", "pass"),),
    ),
    Mutation(
        "mysql-ahead-ddl",
        "a statement that commits by itself goes in one message with XA START",
        test=_ONE + "test_where_the_server_refuses_to_begin_nothing_stays[pymysql-mariadb-create]",
        real=(
            Edit(
                "txpool.resources.mysql.session.statement_text:commits_nothing",
                "_first_word(text_of(sql)) in _CHANGES_ROWS",
                "True",
            ),
        ),
    ),
    Mutation(
        "mysql-hold",
        "the session that prepared may hang, and hold the branch, for ever",
        test=_TWO + "test_a_session_that_hangs_lets_go_by_itself",
        real=(Edit(_BRANCH + "start_prepare", "self._raw.hold_command,", '"do 0",'),),
    ),
    Mutation(
        "mysql-end",
        "the answer of END is not looked at, nor that of PREPARE",
        test=_ONE + "test_a_deadlock_that_was_swallowed_is_a_vote_to_roll_back",
        real=(Edit(_BRANCH + "await_prepare", "failed = ended.error or prepared.error", "failed = None"),),
    ),
    Mutation(
        "mysql-lost-prepare",
        "where PREPARE's answer is lost, the branch counts as rolled back",
        test=_ONE + "test_prepare_never_arrives",
        real=(
            Edit(
                _NAMED + "_roll_back_unanswered",
                "return _UNKNOWN",
                "return BranchOutcome.ROLLED_BACK",
            ),
        ),
    ),
    Mutation(
        "mysql-unrollable",
        "what a table without transactions keeps is not told",
        test=_ONE + "test_what_a_table_without_transactions_keeps_is_told",
        real=(Edit(_BRANCH + "_left", "unrollable = self._raw.unrollable and", "unrollable = False and"),),
    ),
    Mutation(
        "mysql-interrupted-commit",
        "a COMMIT that was interrupted counts as one that was not sent",
        test=_TWO + "test_an_interrupted_commit_may_have_been_sent",
        real=(Edit(_NAMED + "_start", "before = self._phase_two is not None", "before = False"),),
    ),
    Mutation(
        "mysql-one-phase",
        "a lost answer to a COMMIT in one phase counts as a rollback",
        test=_TWO + "test_the_answer_to_one_phase_is_lost",
        real=(
            Edit(
                _BRANCH + "commit_one_phase",
                'error.add_note(f"datasource {self.datasource}: the reply to COMMIT was lost")\n'
                "        return _UNKNOWN",
                "return _ROLLED_BACK",
            ),
        ),
    ),
    Mutation(
        "mysql-nota",
        "XAER_NOTA counts as the end, while the branch is still listed",
        test=_TWO + "test_while_its_session_is_connected_nobody_else_can_end_it",
        real=(
            Edit(
                _PHASE_TWO + "_is_listed",
                "return self._record.xid in xa.listed(raw.session, self._until)",
                "return False",
            ),
        ),
    ),
    Mutation(
        "mysql-generation",
        "a server that was restored from a backup proves as much as the one that prepared",
        test=_TWO + "test_a_server_that_was_restored_from_an_older_backup_proves_nothing",
        real=(
            Edit(
                _PHASE_TWO + "_is_same_generation",
                "has_generation(raw.session, token, self._until)",
                "True",
            ),
        ),
    ),
    Mutation(
        "mysql-first-commit",
        "a branch that the first COMMIT does not find has committed",
        test=_TWO + "test_a_first_commit_that_finds_nothing_is_no_success",
        real=(
            Edit(
                _COMMAND + "_outcome_by_evidence",
                "return self._verb.outcome if self._answer_lost and self._was_prepared else BranchOutcome.ABSENT",
                "return self._verb.outcome",
            ),
        ),
    ),
    Mutation(
        "mysql-lost-commit",
        "the answer to COMMIT was lost, and the branch forgets that it was sent",
        test=_TRANSACTIONS + "test_a_lost_reply_to_commit_is_success_and_no_heuristic",
        real=(
            Edit(
                _COMMAND + "_send_over",
                "self._answer_lost, True",
                "self._answer_lost, self._answer_lost",
            ),
        ),
    ),
    Mutation(
        "mysql-refused-for-now",
        "what the server refuses for now counts as done",
        test=_TWO + "test_a_server_that_refuses_for_now_is_asked_again",
        real=(
            Edit(
                _COMMAND + "_meaning",
                'self._log(self._level, f"refused, left to recovery: {reply.why}")\n    return _UNKNOWN',
                "return self._verb.outcome",
            ),
        ),
    ),
    Mutation(
        "mysql-only-read",
        "of another session's branch, XA_RBROLLBACK counts as a rollback",
        test=_TWO + "test_a_detached_branch_that_has_only_read",
        real=(
            Edit(
                _PHASE_TWO + "_receive",
                "if own else DONE",
                "",
            ),
        ),
    ),
    Mutation(
        "mysql-released",
        "a mark is written though the user's own SQL has ended the transaction",
        test=_MARKED + "test_what_ends_the_transaction_is_found_by_the_savepoint",
        real=(Edit(_MARKS + "MySQLMarks.mark", "require_released(raw, released)", "pass"),),
    ),
    Mutation(
        "mysql-tombstone",
        "a mark is written over the tombstone that has its key",
        test="tests/integration/conformance/test_mysql.py::test_it_passes[mariadb-pymysql-cmr]",
        real=(
            Edit(
                _MARKS + "MySQLMarks.mark",
                "f\"insert into {table} ({', '.join(row)}) select",
                "f\"replace into {table} ({', '.join(row)}) select",
            ),
        ),
    ),
    Mutation(
        "mysql-durable",
        "a mark is written on a server that loses commits",
        test=_MARKED + "test_a_server_that_loses_commits_is_refused",
        real=(Edit(_MARKS + "MySQLMarks.mark", "require_durable(*settings)", "pass"),),
    ),
    Mutation(
        "mysql-cut",
        "a row of which the server has cut a part is a decision",
        test=_SESSIONS + "test_a_row_that_the_server_has_cut_is_no_decision",
        real=(Edit(_MARKS + "MySQLMarks.commit_row", "if whole and not whole[0].rows:", "if False:"),),
    ),
    Mutation(
        "mysql-engine",
        "a table of marks may be of an engine without transactions",
        test=_MARKED + "test_a_table_of_marks_without_transactions_is_refused",
        real=(Edit(_MARKS + "MySQLMarks.qualified_name", 'if str(engine).lower() != "innodb":', "if False:"),),
    ),
    Mutation(
        "mysql-pooler",
        "a branch is begun through a pooler",
        test=_POOLERS + "test_no_transaction_over_two_databases_goes_through_one",
        real=(
            Edit(_DRIVER + "_identify", 'if not raw.direct and self._settings.mode != "local":', "if False:"),
            Edit(_DRIVER + "_identify", "if not raw.direct and self._characteristics.specified:", "if False:"),
        ),
    ),
    Mutation(
        "mysql-stranger",
        "a statement is killed by its session's number, whichever server a balancer leads to",
        test=_POOLERS + "test_a_strangers_statement_on_another_server_is_not_killed",
        real=(Edit(_DRIVER + "cancel", "if other.node != raw.node:", "if False:"),),
    ),
)

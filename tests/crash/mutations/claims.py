"""Rules 31 to 33, each left out: what anybody can write decides nothing, and what we write tells where to look."""

from __future__ import annotations

from dataclasses import replace

from tests.crash.explorer.scenarios import ADOPTED, FORGED, FORGED_MARKED, FORGED_TWO, POINTER, UNNOTED
from tests.crash.mutating import Edit, Mutation

_PREPARE = "txpool.tm.commit.coordinator:Coordinator._prepare"
_MARKED_BY = "recovery.scan.snapshot:Snapshot.marked_by"
_DISPUTED = "recovery.scan.snapshot:Snapshot.disputed"
_UNIT = "tests/unit/recovery/scan/test_foreign_branches.py::"

_NAME = "txpool.tm.commit.coordinator:Coordinator._name_branches"
_NOTED = "            log.note_location(branch.location)\n"
_STARTED = "    for branch in branches:\n        branch.start_prepare()\n"

_BELIEVED = Edit(
    "recovery.scan.owners:BranchOwners.is_ours", "if branch.prepared_by(self._noted_roles(branch)):", "if True:"
)

MUTATIONS = (
    Mutation(
        "31",
        "a name is believed, whoever has prepared under it",
        (_BELIEVED,),
        scenario=FORGED,
        found="stays prepared",
        test=_UNIT + "test_31_alone_it_is_no_transaction_of_ours",
    ),
    Mutation(
        "31 ended",
        "what is none of ours is ended, where recovery may do so",
        (_BELIEVED,),
        scenario=replace(FORGED, name="two, forged, recovery is a superuser", superuser=True, fates=0),
        found="TOUCHED",
    ),
    Mutation(
        "31 absence",
        "a branch whose owner is gone is taken for ours",
        (
            Edit(
                "recovery.scan.datasources.datasources:ListedBranch.prepared_by", "self.roles is None", "not self.roles"
            ),
        ),
        scenario=replace(FORGED, name="two, forged, nobody's", ownerless=True, fates=0),
        found="stays prepared",
        test=_UNIT + "test_31_it_counts_by_the_noted_role_and_by_the_configured_one_where_there_were_no_notes",
    ),
    Mutation(
        "31 server",
        "where the server tells no owner, whoever asks is taken for it",
        test="tests/integration/recovery/test_foreign_branches.py::"
        "test_the_server_tells_who_may_have_prepared_it_and_whose_role_is_gone_is_nobodys",
        real=(
            Edit(
                "txpool.resources.postgresql.branches.recovery:branches_of",
                "None if own else",
                "None if own or not roles else",
            ),
        ),
    ),
    Mutation(
        "31 decision",
        "a name that is believed outranks the log's decision",
        (
            _BELIEVED,
            Edit(_MARKED_BY, "if gtrid in self.decisions:", "if False:"),
            Edit(_DISPUTED, 'return ", ".join(sorted(named)) if len(named) > 1 else ""', 'return ""'),
        ),
        scenario=FORGED,
        test=_UNIT + "test_31_where_ours_differ_a_decision_and_a_pointer_outrank_their_names",
    ),
    Mutation(
        "31 pointer",
        "the names of branches are asked where the log has a pointer",
        (Edit(_MARKED_BY, "if gtrid in self.pointers:", "if False:"),),
        scenario=POINTER,
        test="tests/unit/recovery/scan/test_marked.py::"
        "test_8_a_pointer_overrides_the_name_and_is_kept_while_its_row_may_still_commit",
    ),
    Mutation(
        "31 disputed",
        "of names that differ, and are believed, the first decides",
        (_BELIEVED, Edit(_DISPUTED, 'return ", ".join(sorted(named)) if len(named) > 1 else ""', 'return ""')),
        scenario=FORGED_MARKED,
        test=_UNIT + "test_31_where_ours_differ_in_their_decider_nothing_of_it_is_ended",
    ),
    Mutation(
        "31 identity",
        "a stranger's branch in another database keeps the row whose names it has taken",
        (
            Edit(
                "recovery.scan.modules.transactions:_has_ended",
                "same_identity(named[branch.xid], branch.identity)",
                "True",
            ),
        ),
        scenario=FORGED_TWO,
        found="stays behind",
    ),
    Mutation(
        "31 adoption",
        "a retry adopts what anybody has prepared under an attempt's name",
        (Edit("txpool.spark.commit.listing:list_attempts", "if branch.prepared_by(()) and not branch.elsewhere", ""),),
        scenario=ADOPTED,
    ),
    Mutation(
        "33",
        "nobody notes where it prepares",
        (Edit(_NAME, _NOTED, ""),),
        scenario=UNNOTED,
        found="stays prepared",
        test="tests/unit/tm/test_location_notes.py::test_33_a_note_is_durable_before_the_first_prepare",
    ),
    Mutation(
        "33 late",
        "it is noted once PREPARE is on its way",
        (
            Edit(_NAME, _NOTED, ""),
            Edit(
                _PREPARE,
                _STARTED,
                _STARTED + "    for branch in branches:\n        log.note_location(branch.location)\n",
            ),
        ),
        scenario=UNNOTED,
        found="stays prepared",
    ),
    Mutation(
        "33 vote",
        "a note whose fate is unknown is no vote to roll back",
        (
            Edit(
                _NAME,
                _NOTED,
                "            try:\n                log.note_location(branch.location)\n"
                "            except Exception:\n                pass\n",
            ),
        ),
        scenario=UNNOTED,
        found="stays prepared",
    ),
    Mutation(
        "33 reach",
        "recovery does not look where only a note leads",
        (
            Edit(
                "recovery.scan.reading:take_snapshot",
                "datasources.listings(log.locations(), log.deciders())",
                "datasources.listings()",
            ),
        ),
        scenario=UNNOTED,
        found="stays prepared",
        test=_UNIT + "test_33_a_branch_where_only_the_note_leads_ends_and_is_told",
    ),
)

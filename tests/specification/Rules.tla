--------------------------------- MODULE Rules ---------------------------------
(***************************************************************************)
(* The rules of docs/explanation/rules.md, by their numbers, and what they *)
(* are for.                                                                *)
(***************************************************************************)
EXTENDS Protocol

\* The rules. Breaks(e) has the numbers of those that an event breaks; 0 is two-phase commit itself.

If(broken, rule) == IF broken THEN {rule} ELSE {}

Committing == coord.decided = "yes" \/ coord.abort = "met"
Unresolved == coord.decided = "unknown" /\ coord.abort \notin {"won", "met"}
Alone == \E b \in Voters : coord.votes[b] = "none" /\ coord.answers[b] = "committed"

Unaccounted(b) ==
    \/ coord.votes[b] = "unknown" /\ coord.answers[b] \notin {"committed", "aborted"}
    \/ coord.votes[b] = "yes" /\ coord.answers[b] \in {"none", "unknown"}

RollsBack ==
    If(Committing, 0) \cup If(Unresolved, 12)
        \cup If(coord.decided = "unknown" /\ coord.abort = "won" /\ coord.fence # "no", 15)

GoesOn == If(coord.finish # "none", 14)  \* it has said that it is through

Named(e) ==
    LET yes == {b \in Voters : coord.votes[b] = "yes"} IN
    If(\E b \in Voters \ coord.readers : coord.votes[b] \notin {"yes", "read-only"} \/ coord.answers[b] # "none", 0)
        \cup If(e.names # yes, 21) \cup GoesOn

CoordBreaks(e) ==
    CASE e.what = "prepare" ->
            If(shape.marked /\ coord.row # "yes", 19) \cup If(e.at \notin world.noted, 33) \cup GoesOn
      [] e.what = "mark" ->
            If(e.names # Voters \ coord.readers, 21)
                \cup If(shape.tasks # {} /\ coord.pointer # "yes", 8)
                \cup If(shape.early # {} /\ coord.pointer # "yes", 35)
      [] e.what = "record" -> Named(e)
      [] e.what = "insert" -> Named(e) \cup {10}
      [] e.what = "decide" ->
            Named(e) \cup If((coord.early \/ shape.tasks # {}) /\ coord.fence # "no", 19)
                \cup If(coord.pointer = "yes" /\ coord.fence # "no", 35)
      [] e.what = "both" -> {20}
      [] e.what = "commit" -> If(~Committing, 4) \cup If(coord.abort = "won", 12)
      [] e.what = "rollback" -> RollsBack
      [] e.what = "alone" /\ e.at # "ledger" ->
            IF e.at \in coord.readers THEN If(~(Committing \/ Alone \/ coord.readers = Voters), 36)
            ELSE If(\E b \in Voters \ (coord.readers \cup {e.at}) :
                        coord.answers[b] # "left" /\ coord.votes[b] # "read-only", 22)
      [] e.what = "finish" -> If(Unresolved, 14)
      [] e.what \in {"forget", "purge", "delete"} ->
            If(Committing /\ \E b \in Voters : coord.votes[b] = "yes" /\ coord.answers[b] \in {"none", "unknown"}, 7)
      [] e.what = "tell" ->
            CASE e.reply = "rolled back" ->
                    RollsBack \cup If(\E b \in Voters : coord.votes[b] = "none" /\ coord.answers[b] = "unknown", 30)
              [] e.reply = "committed" ->
                    If(~(Committing \/ Alone \/ shape.marked \/ coord.readers = Voters), 4)
                        \cup If(world.life # "fenced" /\ \E b \in Voters : coord.answers[b] = "absent", 34)
              [] OTHER -> {}
      [] e.what = "end" /\ world.life = "alive" /\ coord.finish # "yes" /\ coord.told # "in doubt" ->
            If(\E b \in Voters : Unaccounted(b), 5) \cup If(shape.losers # {}, 28)
      [] OTHER -> {}

\* Whether recovery may act: the incarnation is fenced, by a durable write of this pass, or has finished it.
Fenced(r) == r.life \in {"dead", "fenced"} /\ r.wrote
MayAct(r) == Fenced(r) \/ r.finished = "yes"

ByRow(r) == shape.marked /\ (ByMark \/ r.pointer)
Acts(r, rule) ==
    IF MayAct(r) \/ r.abort = "won" \/ (shape.overdue /\ r.met) THEN {}
    ELSE IF r.life = "alive" THEN {1, 38} ELSE IF r.life = "gone" THEN {1} ELSE {rule}

Answered(r, b) == r.answers[b] \in {"committed", "aborted"}
Concerned(r) == IF r.decision = "decided" \/ r.row = "row" THEN r.names ELSE r.listed

Forgets(r) ==
    If(~MayAct(r) /\ r.abort # "won", 13)
        \cup If(\E b \in Concerned(r) : r.answers[b] \in {"none", "unknown"}, 7)
        \cup If(\E b \in Concerned(r) : r.answers[b] \notin {"none", "unknown"} /\ ~Answered(r, b) /\ b \notin r.later
                    \* what this pass has seen, and is gone, has ended
                    /\ ~(r.answers[b] = "absent" /\ b \in r.listed), 6)

RecovBreaks(r, e) ==
    CASE e.what = "incarnations" -> If(~(shape.configured \subseteq r.asked), 1)
      [] e.what = "fence" -> If(r.life \notin {"dead", "fenced"} \/ (r.life = "dead" /\ r.finished # "unread"), 1)
      [] e.what = "finished" -> If(r.life = "unread", 1)
      [] e.what = "decisions" ->
            If(~(shape.configured \subseteq r.asked), 3) \cup If(r.life = "unread", 1) \cup If(r.finished = "unread", 2)
      [] e.what = "tombstone" -> IF shape.overdue THEN {} ELSE Acts(r, 24)
      [] e.what = "commit" ->
            Acts(r, 23) \cup If(r.abort = "won", 38)
                \cup CASE r.decision = "decided" /\ e.at \in r.names -> {}
                       [] r.row = "row" -> If(~r.met, 18)
                       [] r.row = "tomb" -> {17}
                       [] OTHER -> {4}
      [] e.what = "rollback" ->
            Acts(r, 24) \cup If(r.decision = "unread" /\ r.abort # "won", 3)
                \cup If(e.at \in r.names /\ (r.decision = "decided" \/ r.row = "row"), 0)
                \cup If(ByRow(r) /\ r.decision # "decided" /\ ~r.met, 16)
      [] e.what \in {"forget", "delete"} -> Forgets(r)
      [] e.what = "unregistered" -> {27}
      [] e.what = "unsynced" -> {18}  \* the row that it has met is not on the disk
      [] e.what = "purge" -> Forgets(r) \cup If(~Fenced(r), 13)  \* marks and abort records stay until the fence
      [] OTHER -> {}

\* The answers that a store gives, and must not.
StoreBreaks(e) ==
    IF e.reply = "" \/ e.fate \notin {"ok", "no"} THEN {}
    ELSE CASE e.what \in {"record", "insert"} -> If(e.reply = "done" /\ world.life = "fenced", 11)
           [] e.what = "tombstone" -> If(e.reply = "tomb" /\ world.rows = {"row"}, 9)
           [] e.what = "incarnations" -> If(e.reply = "gone", 27)
           [] e.what = "foreign" -> {31}
           [] OTHER -> {}

TaskBreaks(e) == IF e.what = "rollback" THEN {26} ELSE {}

Breaks(e) ==
    CASE e.who = "C" -> CoordBreaks(e)
      [] e.who \in DOMAIN recov -> RecovBreaks(recov[e.who], e)
      [] e.who = "task" -> TaskBreaks(e)
      [] OTHER -> {}

---------------------------------------------------------------------------
\* What the rules are for.

Ends == {world.branch[b] : b \in Voters \ coord.readers}
            \cup (IF world.ledger \in {"committed", "aborted"} THEN {world.ledger} ELSE {})

Atomic == ~({"committed", "aborted"} \subseteq Ends)

Honest ==
    /\ coord.told = "committed" => "aborted" \notin Ends
    /\ coord.told = "rolled back" => "committed" \notin Ends

\* A branch that is prepared when nothing is on its way any more can be ended by the next pass.
NothingStays ==
    (coord.pc # "runs" /\ world.late = {}) =>
        \A b \in shape.branches : world.branch[b] = "prepared" =>
            /\ b \in world.noted
            /\ \/ world.life \in {"dead", "fenced"}
               \/ world.life = "alive" /\ (world.finished \/ coord.told = "in doubt")
=============================================================================

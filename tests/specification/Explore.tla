-------------------------------- MODULE Explore --------------------------------
(***************************************************************************)
(* Everything that breaks no rule may happen, with so many faults.         *)
(***************************************************************************)
EXTENDS Rules, TLC

VARIABLE left  \* how many faults of each kind there still may be

vars == <<shape, world, coord, recov, left>>

Init == First /\ left = shape.faults

ToLog(what) == Event("C", what, "log", {}, "ok")
All == {b \in Voters : coord.votes[b] # "read-only"}
ToName == IF Kept(21) THEN {All} ELSE {names \in SUBSET All : names # {}}

\* What the coordinator may send. Conditions here only leave out what has no use; what may not be is for the rules.
Ending ==
    {Event("C", what, b, {}, "ok") : what \in (IF Committing THEN {"commit"} ELSE {"commit", "rollback"}),
        b \in {b \in Voters : coord.votes[b] \in {"yes", "unknown"} /\ coord.answers[b] = "none"}}
    \cup {Event("C", "leave", b, {}, "ok") : b \in {b \in Voters : world.branch[b] = "open" /\ coord.votes[b] = "none"
                                                                   /\ coord.answers[b] = "none"}}

Untouched == {b \in Voters : coord.votes[b] = "none" /\ coord.answers[b] = "none"}

Preparing ==
    IF coord.decided # "none" \/ coord.told # "none" THEN {}
    ELSE {Event("C", "prepare", b, {}, "ok") : b \in Untouched}
    \cup (IF Cardinality(Voters) = 1 /\ ~shape.marked
          THEN {Event("C", "alone", b, {}, "ok") : b \in Untouched}
          ELSE {})
    \cup (IF shape.marked /\ ~ByMark /\ coord.pointer = "none" /\ coord.row = "none" THEN {ToLog("point")} ELSE {})
    \cup (IF shape.marked /\ coord.row = "none"
          THEN {Event("C", "mark", "ledger", names, "ok") : names \in ToName}
                \cup (IF Kept(20) THEN {} ELSE {Event("C", "both", "ledger", All, "ok")}) ELSE {})
    \cup (IF coord.row = "yes" THEN {Event("C", "decide", "ledger", names, "ok") : names \in ToName} ELSE {})
    \cup (IF shape.marked THEN {}
          ELSE {Event("C", what, "log", names, "ok") : names \in ToName,
                    what \in {"record"} \cup (IF Kept(10) \/ coord.fence # "no" THEN {} ELSE {"insert"})})

Resolving ==
    (IF coord.decided = "unknown" /\ coord.abort \in {"none", "unknown"}
     THEN {Event("C", "abort", IF shape.marked THEN "ledger" ELSE "log", {}, "ok")} ELSE {})
    \cup (IF coord.fence = "unread" /\ coord.told = "none"
             /\ (coord.decided = "unknown" \/ coord.row = "yes" \/ ~Kept(10) \/ ~Kept(15))
          THEN {ToLog("is_fenced")} ELSE {})

LettingGo ==
    (IF coord.finish # "yes" /\ (coord.told # "none" \/ coord.decided = "unknown")
        /\ \/ ~Kept(14) /\ coord.decided = "unknown"
           \/ \A b \in Voters : coord.votes[b] \in {"none", "no"} \/ coord.answers[b] # "none"
     THEN {ToLog("finish")} ELSE {})
    \cup (IF coord.told # "none" /\ world.log = "decided" THEN {ToLog("forget")} ELSE {})
    \cup (IF coord.told # "none" /\ world.rows = {"row"} THEN {Event("C", "delete", "ledger", {}, "ok")} ELSE {})

Commands ==
    Preparing \cup Resolving \cup Ending \cup LettingGo

Says ==
    IF coord.told # "none" THEN {}
    ELSE {[Event("C", "tell", "caller", {}, "ok") EXCEPT !.reply = outcome] :
            outcome \in IF Committing \/ Alone THEN {"committed"}
                        ELSE IF \A b \in Voters : coord.votes[b] \in {"none", "no"} /\ coord.answers[b] = "none"
                        THEN {} ELSE {"rolled back"}}

Ended == IF coord.told = "none" THEN {} ELSE {Event("C", "end", "caller", {}, "ok")}

ByRecov(who, r) ==
    {Event(who, "list", "all", {}, "ok")}
    \cup (IF r.life = "unread" THEN {Event(who, "incarnations", "log", {}, "ok")} ELSE {})
    \cup (IF r.life \in {"dead", "fenced"} /\ ~r.wrote THEN {Event(who, "fence", "log", {}, "ok")} ELSE {})
    \cup (IF r.finished = "unread" THEN {Event(who, "finished", "log", {}, "ok")} ELSE {})
    \cup (IF r.decision = "unread" THEN {Event(who, "decisions", "log", {}, "ok")} ELSE {})
    \cup (IF ByRow(r) /\ r.decision = "none" /\ ~r.met THEN {Event(who, "tombstone", "ledger", {}, "ok")} ELSE {})
    \cup {Event(who, "commit", b, {}, "ok") :
            b \in {b \in r.names : r.answers[b] = "none" /\ (r.decision = "decided" \/ r.row = "row")}}
    \cup {Event(who, "commit", b, {}, "ok") :
            b \in {b \in r.listed : ~Kept(17) /\ r.answers[b] = "none" /\ r.row = "tomb" /\ ~r.own}}
    \cup {Event(who, "rollback", b, {}, "ok") :
            b \in {b \in r.listed : r.answers[b] = "none" /\ r.decision # "unread"
                                        /\ (b \notin r.names \/ (r.decision # "decided" /\ r.row # "row"))}}
    \cup (IF r.decision = "decided" THEN {Event(who, "forget", "log", {}, "ok")} ELSE {})
    \cup (IF r.decision # "unread" /\ (world.log # "none" \/ world.finished)
          THEN {Event(who, "purge", "log", {}, "ok")} ELSE {})
    \cup (IF r.row \in {"row", "tomb"} THEN {Event(who, "delete", "ledger", {}, "ok")} ELSE {})
    \cup (IF r # Fresh(shape) THEN {Event(who, "begin", "log", {}, "ok")} ELSE {})

Sent == (IF coord.pc = "runs" THEN Commands ELSE {}) \cup UNION {ByRecov(who, recov[who]) : who \in DOMAIN recov}

Unknown ==
    {"prepare", "commit", "rollback", "alone", "mark", "decide", "both", "abort", "record", "insert", "finish", "point"}

Fates(e) ==
    IF left.fates = 0 \/ (e.who # "C" /\ e.what \notin {"commit", "rollback"}) THEN {}
    ELSE (IF e.what \in Unknown THEN {"lost", "reply-lost", "late"} ELSE {})
            \cup (IF e.who = "C" /\ e.what \in {"prepare", "alone"} THEN {"no"} ELSE {})
            \* MariaDB, for as long as the session is there that has prepared it
            \cup (IF e.who # "C" /\ e.at \in DOMAIN world.branch /\ world.branch[e.at] = "prepared" THEN {"nota"} ELSE {})
            \cup (IF shape.disk /\ e.what = "record" /\ LogTakes(world, e) THEN {"sync-fails"} ELSE {})

Allowed(e) == Breaks(e) \subseteq shape.without

Sends == \E e \in Sent \cup (IF coord.pc = "runs" THEN Says \cup Ended ELSE {}) :
    /\ Allowed(e)
    /\ Happens(e)
    /\ UNCHANGED left

Fails == \E e \in Sent : \E fate \in Fates(e) :
    /\ Allowed(e)
    /\ Happens(IF fate = "nota" THEN [e EXCEPT !.reply = "nota"] ELSE [e EXCEPT !.fate = fate])
    /\ left' = [left EXCEPT !.fates = @ - 1]

\* Killed between a write and its sync.
Unsynced == \E e \in Sent :
    /\ shape.disk /\ left.crashes > 0 /\ e.who = "C" /\ e.what \in {"record", "decide"}
    /\ Allowed(e) /\ Answer(world, e) = "done"
    /\ Happens([e EXCEPT !.fate = "unsynced"])
    /\ left' = [left EXCEPT !.crashes = @ - 1]

Lands == \E m \in world.late :
    /\ Happens(Event("net", m.what, m.at, m.names, "lands"))
    /\ UNCHANGED left

Crashes ==
    /\ left.crashes > 0 /\ coord.pc # "dead"
    /\ Happens(Event("net", "crash", "", {}, "ok"))
    /\ left' = [left EXCEPT !.crashes = @ - 1]

LosesLease ==
    /\ left.leases > 0 /\ world.life = "alive" /\ coord.pc # "dead"
    /\ Happens(Event("net", "lease", "", {}, "ok"))
    /\ left' = [left EXCEPT !.leases = @ - 1]

LosesPower ==
    /\ world.unsynced # {} \/ world.shadow
    /\ Happens(Event("net", "power", "", {}, "ok"))
    /\ UNCHANGED left

\* A task whose exception comes when it has sent PREPARE.
TaskRollsBack == \E b \in shape.tasks :
    LET e == Event("task", "rollback", b, {}, "ok") IN
    /\ world.branch[b] = "prepared" /\ coord.told = "none"
    /\ Allowed(e) /\ Happens(e) /\ UNCHANGED left

Next == Sends \/ Fails \/ Unsynced \/ Lands \/ Crashes \/ LosesLease \/ LosesPower \/ TaskRollsBack
Spec == Init /\ [][Next]_vars

---------------------------------------------------------------------------
\* With one worker: each case is left where its first violation is found, which is told. Rules are left out so.

Violated == IF ~Atomic THEN "Atomic" ELSE IF ~Honest THEN "Honest" ELSE IF ~NothingStays THEN "NothingStays" ELSE ""

Found == 1  \* the register that has the cases in which something was found

ASSUME TLCSet(Found, {})

UntilFound ==
    IF shape.name \in TLCGet(Found) THEN FALSE
    ELSE IF Violated = "" THEN TRUE
    ELSE TLCSet(Found, TLCGet(Found) \cup {shape.name}) /\ PrintT(<<"found", shape.name, Violated>>) /\ FALSE
=============================================================================

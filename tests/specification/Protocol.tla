------------------------------- MODULE Protocol -------------------------------
(***************************************************************************)
(* One transaction's commit: databases, the decision log, the marked       *)
(* database, messages on their way, the coordinator, recoverers and        *)
(* Spark's attempts.                                                       *)
(*                                                                         *)
(* No process has a program here. A process may do anything at any time,   *)
(* and Breaks(e) in Rules.tla says which rules its event e breaks, by what *)
(* that process knows. Explore.tla lets happen all that breaks no rule.    *)
(* Traces.tla follows what the real code did.                              *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, Sequences

CONSTANT Cases  \* what transactions are over, and the rules that are left out, each a record

VARIABLES
    shape,  \* the one that this is
    world,  \* what is outside of the processes
    coord,  \* what the coordinator knows
    recov   \* what each recoverer knows of its pass

\* A rule that is left out has no guard, and the stores do not keep it.
Kept(rule) == rule \notin shape.without

\* Those that the coordinator decides about; a loser is an attempt that nobody has heard of.
Voters == shape.branches \ shape.losers
ByMark == shape.marked /\ shape.tasks \cup shape.early = {}

---------------------------------------------------------------------------
\* Events: a command with its fate and, in a trace, the answer that was seen.

Event(who, what, at, names, fate) ==
    [who |-> who, what |-> what, at |-> at, names |-> names, fate |-> fate, reply |-> ""]

Message(e) == [what |-> e.what, at |-> e.at, names |-> e.names]

FirstWorld(s) ==
    [branch   |-> [b \in s.branches |-> IF b \in s.tasks THEN "prepared" ELSE "open"],
     ledger   |-> IF s.marked THEN "open" ELSE "none",
     rows     |-> {},        \* under the gtrid's key: {}, {"row"}, {"tomb"}
     rowNames |-> {},
     log      |-> "none",    \* under the gtrid's key: "none", "decided", "aborted"
     logNames |-> {},
     life     |-> "alive",   \* of the incarnation: "alive", "dead", "fenced"
     finished |-> FALSE,
     pointer  |-> FALSE,
     noted    |-> s.noted,   \* where it is noted that this node prepares
     unsynced |-> {},        \* readable, and gone with the power
     shadow   |-> FALSE,     \* a decision whose sync has failed: back after the power was lost
     late     |-> {[what |-> "prepare", at |-> b, names |-> {}] : b \in s.losers}]

FirstCoord(s) ==
    [pc      |-> "runs",     \* "runs", "ended", "dead"
     votes   |-> [b \in s.branches |-> IF b \in s.tasks THEN "yes" ELSE "none"],
     answers |-> [b \in s.branches |-> "none"],
     decided |-> "none",     \* "none", "yes", "no", "unknown"
     abort   |-> "none",     \* of the abort record or tombstone: "none", "won", "met", "unknown"
     fence   |-> "unread",   \* read since the last row or abort record: "unread", "yes", "no"
     row     |-> "none",     \* the INSERT of the mark: "none", "yes", "no", "unknown"
     early   |-> FALSE,      \* something was prepared before the row was answered
     pointer |-> "none",
     finish  |-> "none",
     readers |-> {},
     told    |-> "none"]

Fresh(s) ==
    [asked |-> {}, listed |-> {}, later |-> {}, life |-> "unread", wrote |-> FALSE, finished |-> "unread",
     decision |-> "unread", names |-> {}, pointer |-> FALSE, row |-> "unread", met |-> FALSE, own |-> FALSE,
     abort |-> "none",
     answers |-> [b \in s.branches |-> "none"]]

First ==
    /\ shape \in Cases
    /\ world = FirstWorld(shape)
    /\ coord = FirstCoord(shape)
    /\ recov = [who \in shape.recoverers |-> Fresh(shape)]

---------------------------------------------------------------------------
\* What a command does where it is executed.

LogTakes(w, e) == w.log = "none" /\ (w.life # "fenced" \/ ~Kept(11) \/ e.what = "insert" \/ e.reply = "done")
TombWins(w, e) == w.rows = {} \/ ~Kept(9) \/ e.reply = "tomb"
MarkTakes(w) == w.ledger = "open" /\ w.rows = {}

Durable == {"record", "insert", "abort", "fence", "finish", "point", "purge", "note"}

Left(w, at) ==
    IF at = "ledger"
    THEN LET busy == \E m \in w.late : m.at = "ledger" /\ m.what \in {"mark", "decide", "both", "alone"}
         IN IF w.ledger \in {"open", "row"} /\ ~busy THEN [w EXCEPT !.ledger = "aborted"]
            ELSE IF w.ledger = "open" THEN [w EXCEPT !.ledger = "left"] ELSE w
    ELSE IF w.branch[at] = "open" /\ ~\E m \in w.late : m.what = "prepare" /\ m.at = at
         THEN [w EXCEPT !.branch[at] = "aborted"] ELSE w

Tombstone(w, e) ==
    IF w.ledger = "row" THEN w  \* it waits, and gives up
    ELSE [w EXCEPT !.rows = IF TombWins(w, e) THEN @ \cup {"tomb"} ELSE @,
                   !.unsynced = IF Kept(18) THEN @ \ {"row"} ELSE @]

MarkedRow(w) == [w EXCEPT !.ledger = IF MarkTakes(w) THEN "row" ELSE IF @ \in {"open", "left"} THEN "aborted" ELSE @]

Decide(w, e) ==
    IF w.ledger # "row" THEN w
    ELSE [w EXCEPT !.ledger = "committed", !.rows = @ \cup {"row"}, !.rowNames = e.names, !.unsynced = @ \ {"row"}]

End(w, e, ended) ==
    IF w.branch[e.at] = "prepared" /\ e.reply \notin {"nota", "refused"} THEN [w EXCEPT !.branch[e.at] = ended] ELSE w

OnLog(w, e) ==
    CASE e.what \in {"record", "insert"} ->
            IF LogTakes(w, e) THEN [w EXCEPT !.log = "decided", !.logNames = e.names] ELSE w
      [] e.what = "abort" -> IF w.log = "none" THEN [w EXCEPT !.log = "aborted"] ELSE w
      [] e.what = "fence" -> [w EXCEPT !.life = IF Kept(27) THEN "fenced" ELSE "gone"]
      [] e.what = "finish" -> [w EXCEPT !.finished = TRUE]
      [] e.what = "point" -> IF w.life = "fenced" THEN w ELSE [w EXCEPT !.pointer = TRUE]
      [] e.what = "forget" -> IF w.log = "decided" THEN [w EXCEPT !.log = "none", !.logNames = {}] ELSE w
      [] e.what = "purge" -> [w EXCEPT !.log = "none", !.logNames = {}, !.finished = FALSE, !.pointer = FALSE]
      [] OTHER -> w

Synced(w, after, e) ==
    IF e.what \in Durable /\ (after # w \/ e.what = "fence")
    THEN [after EXCEPT !.unsynced = @ \cap {"row"}, !.shadow = FALSE] ELSE after

Run(w, e) ==
    CASE e.at = "log" /\ e.what # "note" -> Synced(w, OnLog(w, e), e)
      [] e.what = "note" -> [w EXCEPT !.noted = @ \cup e.names]
      [] e.what = "prepare" ->
            IF w.branch[e.at] # "open" THEN w
            ELSE [w EXCEPT !.branch[e.at] =
                    IF e.fate = "no" THEN "aborted" ELSE IF e.reply = "read-only" THEN "read-only" ELSE "prepared"]
      [] e.what = "alone" /\ e.at = "ledger" -> [w EXCEPT !.ledger = IF @ \in {"open", "left"} THEN "committed" ELSE @]
      [] e.what = "alone" ->
            IF w.branch[e.at] # "open" THEN w
            ELSE [w EXCEPT !.branch[e.at] = IF e.fate = "no" THEN "aborted" ELSE "committed"]
      [] e.what = "commit" -> End(w, e, "committed")
      [] e.what = "rollback" -> End(w, e, "aborted")
      [] e.what = "leave" -> Left(w, e.at)
      [] e.what = "mark" -> MarkedRow(w)
      [] e.what = "decide" -> Decide(w, e)
      [] e.what = "both" -> Decide(MarkedRow([w EXCEPT !.ledger = IF @ = "left" THEN "open" ELSE @]), e)
      [] e.what = "tombstone" -> Tombstone(w, e)
      [] e.what = "abort" -> Tombstone(Left(w, "ledger"), e)
      [] e.what = "delete" -> [w EXCEPT !.rows = {}, !.rowNames = {}, !.unsynced = @ \ {"row"}]
      [] OTHER -> w

RECURSIVE LeftAll(_, _)
LeftAll(w, places) ==
    IF places = {} THEN w ELSE LET b == CHOOSE b \in places : TRUE IN LeftAll(Left(w, b), places \ {b})

\* The coordinator is dead: its sessions are gone, and its lock is free.
Killed(w) ==
    LET left == LeftAll(w, shape.branches \cup (IF w.ledger = "none" THEN {} ELSE {"ledger"}))
    IN [left EXCEPT !.life = IF @ = "alive" THEN "dead" ELSE @]

\* The power is lost: what was not synced is gone, or back.
Unpowered(w) ==
    LET log == IF "decision" \in w.unsynced THEN "none" ELSE IF w.shadow /\ w.log = "none" THEN "decided" ELSE w.log
        lost == "row" \in w.unsynced
    IN Killed([w EXCEPT !.log = log,
                        !.logNames = IF log = "decided" THEN Voters ELSE {},
                        !.life = IF "fence" \in w.unsynced THEN "dead" ELSE @,
                        !.rows = IF lost THEN {} ELSE @,
                        !.ledger = IF lost THEN "aborted" ELSE @,
                        !.unsynced = {}, !.shadow = FALSE,
                        !.late = {m \in @ : m.at # "log"}])

---------------------------------------------------------------------------
\* What is answered.

EndAnswer(w, e, ended) ==
    IF w.branch[e.at] = "prepared" THEN ended
    ELSE IF w.branch[e.at] \in {"committed", "aborted"} THEN w.branch[e.at] ELSE "absent"

TombAnswer(w, e) == IF w.ledger = "row" THEN "busy" ELSE IF TombWins(w, e) \/ w.rows = {"tomb"} THEN "tomb" ELSE "row"

Answer(w, e) ==
    CASE e.what = "prepare" ->
            IF w.branch[e.at] # "open" THEN "unknown" ELSE IF e.fate = "no" THEN "no" ELSE "yes"
      [] e.what = "alone" ->
            IF (IF e.at = "ledger" THEN w.ledger ELSE w.branch[e.at]) \notin {"open", "left"} THEN "unknown"
            ELSE IF e.fate = "no" THEN "aborted" ELSE "committed"
      [] e.what = "commit" -> EndAnswer(w, e, "committed")
      [] e.what = "rollback" -> EndAnswer(w, e, "aborted")
      [] e.what \in {"record", "insert"} -> IF LogTakes(w, e) THEN "done" ELSE "no"
      [] e.what = "point" -> IF w.life = "fenced" THEN "no" ELSE "done"
      [] e.what = "mark" -> IF MarkTakes(w) THEN "done" ELSE IF w.ledger = "open" THEN "no" ELSE "unknown"
      [] e.what = "decide" -> IF w.ledger = "row" THEN "done" ELSE "unknown"
      [] e.what = "both" -> IF MarkTakes(w) THEN "done" ELSE "no"
      [] e.what = "abort" /\ e.at = "log" -> IF w.log = "decided" THEN "met" ELSE "won"
      [] e.what = "abort" ->
            LET answer == TombAnswer(Left(w, "ledger"), e)
            IN CASE answer = "row" -> "met" [] answer = "tomb" -> "won" [] OTHER -> "unknown"
      [] e.what = "tombstone" -> TombAnswer(w, e)
      [] e.what = "is_fenced" -> IF w.life = "fenced" THEN "yes" ELSE "no"
      [] e.what = "incarnations" -> w.life
      [] e.what = "finished" -> IF w.finished THEN "yes" ELSE "no"
      [] e.what = "decisions" -> IF w.log = "decided" THEN "decided" ELSE "none"
      [] e.what = "pointers" -> IF w.pointer THEN "yes" ELSE "no"
      [] e.what = "list" -> IF e.at # "all" /\ w.branch[e.at] # "prepared" THEN "none" ELSE "prepared"
      [] OTHER -> "done"

\* The answer as its sender has it.
Heard(w, e) ==
    IF e.fate \notin {"ok", "no"} THEN "unknown" ELSE IF e.reply # "" THEN e.reply ELSE Answer(w, e)

Executed(e) == e.fate \in {"ok", "no", "reply-lost", "unsynced"}

---------------------------------------------------------------------------
\* What processes learn.

Decides == {"record", "insert", "decide", "both"}

CoordLearns(w, e) ==
    LET heard == Heard(w, e) IN
    CASE e.what = "prepare" -> [coord EXCEPT !.votes[e.at] = heard, !.early = @ \/ coord.row # "yes"]
      [] e.what = "ask" -> [coord EXCEPT !.readers = IF heard = "yes" THEN @ \cup {e.at} ELSE @]
      [] e.what \in Decides -> [coord EXCEPT !.decided = IF heard = "done" THEN "yes" ELSE heard]
      [] e.what = "abort" -> [coord EXCEPT !.abort = heard, !.fence = "unread"]
      [] e.what = "is_fenced" -> [coord EXCEPT !.fence = IF heard = "unknown" THEN "unread" ELSE heard]
      [] e.what = "mark" -> [coord EXCEPT !.row = IF heard = "done" THEN "yes" ELSE heard, !.fence = "unread"]
      [] e.what = "point" -> [coord EXCEPT !.pointer = IF heard = "done" THEN "yes" ELSE heard]
      [] e.what = "finish" -> [coord EXCEPT !.finish = IF heard = "done" THEN "yes" ELSE heard]
      [] e.what = "alone" /\ e.at = "ledger" -> [coord EXCEPT !.decided = IF heard = "committed" THEN "yes" ELSE @]
      [] e.what \in {"commit", "rollback", "alone", "leave"} /\ e.at # "ledger" ->
            [coord EXCEPT !.answers[e.at] = heard]
      [] e.what = "tell" -> [coord EXCEPT !.told = e.reply]
      [] e.what = "end" -> [coord EXCEPT !.pc = "ended"]
      [] OTHER -> coord

Listing(w, e) == IF e.at = "all" THEN {b \in shape.branches : w.branch[b] = "prepared"}
                 ELSE IF Heard(w, e) = "prepared" THEN {e.at} ELSE {}
Asked(e) == IF e.at = "all" THEN shape.branches ELSE {e.at}

\* Whether a pass asks the marked database: the names of branches or a pointer lead there.
Looks(w) == ByMark \/ w.pointer

RecovLearns(r, w, e) ==
    LET heard == Heard(w, e) IN
    CASE e.what = "begin" -> Fresh(shape)
      [] e.what = "list" -> [r EXCEPT !.asked = @ \cup Asked(e), !.listed = (@ \ Asked(e)) \cup Listing(w, e),
                                      !.later = IF heard = "unknown" THEN @ ELSE @ \cup (Asked(e) \ Listing(w, e))]
      [] e.what = "incarnations" -> \* a pass begins with what was listed before
            IF Kept(1) THEN [Fresh(shape) EXCEPT !.life = heard, !.asked = r.asked, !.listed = r.listed, !.abort = r.abort]
            ELSE [r EXCEPT !.life = heard]
      [] e.what = "fence" -> [r EXCEPT !.wrote = heard = "done"]
      [] e.what = "finished" -> [r EXCEPT !.finished = heard]
      [] e.what = "decisions" -> [r EXCEPT !.decision = heard,
                                           !.names = IF heard = "decided" THEN w.logNames
                                                     ELSE IF e.reply = "" /\ "row" \in w.rows /\ Looks(w)
                                                     THEN w.rowNames ELSE @,
                                           !.pointer = IF e.reply = "" THEN w.pointer ELSE @,
                                           !.row = IF e.reply # "" \/ w.rows = {} \/ ~Looks(w) THEN @
                                                   ELSE CHOOSE x \in w.rows : TRUE,
                                           !.met = FALSE]
      [] e.what = "pointers" -> [r EXCEPT !.pointer = heard = "yes"]
      [] e.what = "rows" -> [r EXCEPT !.row = heard, !.met = FALSE, !.names = IF heard = "row" THEN w.rowNames ELSE @]
      [] e.what = "tombstone" -> [r EXCEPT !.row = IF heard = "busy" THEN "unknown" ELSE heard,
                                           !.met = heard \in {"row", "tomb"},
                                           !.own = heard = "tomb" /\ w.rows = {},
                                           !.names = IF heard = "row" THEN w.rowNames ELSE @]
      [] e.what = "abort" -> [r EXCEPT !.abort = heard]
      [] e.what \in {"commit", "rollback"} -> [r EXCEPT !.answers[e.at] = heard, !.later = @ \ {e.at}]
      [] OTHER -> r

---------------------------------------------------------------------------
\* The step that an event is.

Happens(e) ==
    /\ shape' = shape
    /\ LET w == IF e.fate = "lands" THEN [world EXCEPT !.late = @ \ {Message(e)}] ELSE world
           ran == IF e.fate = "late" THEN [w EXCEPT !.late = @ \cup {Message(e)}]
                  ELSE IF e.what = "crash" THEN Killed(w)
                  ELSE IF e.what = "power" THEN Unpowered(w)
                  ELSE IF e.what = "lease" THEN [w EXCEPT !.life = "dead"]
                  ELSE IF e.fate = "sync-fails" THEN [w EXCEPT !.shadow = TRUE]
                  ELSE IF Executed(e) \/ e.fate = "lands" THEN Run(w, e)
                  ELSE IF e.fate = "lost" /\ e.what \in {"ask", "prepare", "alone", "mark", "decide", "both"}
                  THEN Left(w, e.at)
                  ELSE w
           kind == IF e.what = "decide" THEN "row" ELSE IF e.what = "fence" THEN "fence" ELSE "decision"
       IN world' = IF e.fate = "unsynced"
                   THEN [IF e.who = "C" THEN Killed(ran) ELSE ran EXCEPT !.unsynced = w.unsynced \cup {kind}] ELSE ran
    /\ coord' = IF e.what \in {"crash", "power"} \/ (e.who = "C" /\ e.fate = "unsynced")
                THEN [coord EXCEPT !.pc = "dead"]
                ELSE IF e.who = "C" /\ e.fate # "lands" THEN CoordLearns(world, e) ELSE coord
    /\ recov' = IF e.what = "power" THEN [who \in DOMAIN recov |-> Fresh(shape)]
                ELSE IF e.who \in DOMAIN recov /\ e.fate # "lands"
                THEN [recov EXCEPT ![e.who] = RecovLearns(@, world, e)] ELSE recov
=============================================================================

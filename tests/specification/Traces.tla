-------------------------------- MODULE Traces --------------------------------
(***************************************************************************)
(* What the real code did, event by event: Recorded.tla has the traces.    *)
(* At the end of each the rules that it has broken are told.               *)
(***************************************************************************)
EXTENDS Rules, TLC

VARIABLES
    todo,   \* the events that are to come
    broken  \* the rules that were broken

Init == First /\ todo = shape.events /\ broken = {}

\* The world of the specification answers as the explorer's does.
AsAnswered(e) ==
    e.fate # "ok" \/ e.reply = "" \/
    CASE e.what \in {"finished", "decisions", "pointers", "list", "mark", "decide", "alone"} ->
            e.reply = Answer(world, e)
      [] e.what \in {"commit", "rollback"} ->
            IF world.branch[e.at] = "prepared" THEN e.reply \in {Answer(world, e), "nota", "refused"}
            ELSE e.reply \in {world.branch[e.at], "absent", "in progress", "lost"}
      [] OTHER -> TRUE

Next ==
    /\ todo # <<>>
    /\ LET e == Head(todo)
           rules == Breaks(e) \cup StoreBreaks(e)
       IN /\ Happens(e)
          /\ todo' = Tail(todo)
          /\ broken' = broken \cup rules \cup (IF AsAnswered(e) \/ rules # {} THEN {} ELSE {99})
          /\ (todo' = <<>>) => PrintT(<<"ends", shape.name, broken'>>)
=============================================================================

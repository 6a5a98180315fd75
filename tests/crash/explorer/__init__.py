"""A model checker that drives the real coordinator and the real recovery over a model of databases, network and disk.

`model` holds the state of the databases and what every command does to it; `parts` are the branches, and `stores` the
log and the datasources that the real code is given; `actors` run the real code one call at a time; `explore` searches
every interleaving and every fate of every call; `final_check` lets recovery finish and checks the invariants; `trace`
prints what happened.
"""

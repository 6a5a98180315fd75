"""A model checker that drives the real coordinator and the real recovery over a model of databases, network and disk.

`world` is the model and what every command does to it; `parts` are the branches, logs and tables that the real code
is given; `actors` run the real code one call at a time; `explore` searches every interleaving and every fate of every
call; `finale` lets recovery finish and judges the end; `trace` tells people what happened.
"""

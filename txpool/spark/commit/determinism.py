"""Whether the rows of a partition may be others when Spark computes it again, as far as the plan tells.

Spark computes a partition again after a failure, and a rerun computes all of them. What is drawn by chance comes out
as before where the rows come in the same order, since its seed is a part of the plan. Behind a shuffle they come in
another one. That harms nobody until such a value, or such a choice of rows, decides to which partition a row goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

_SORT = "spark.sql.execution.sortBeforeRepartition"


@dataclass(frozen=True, slots=True)
class _Rows:
    """What comes out of a part of a plan."""

    #: Each partition's rows come in the same order every time.
    ordered: bool = True
    #: They are the same rows every time, but for the `loose` columns: those ids have values that may be others.
    fixed: bool = True
    loose: frozenset[int] = frozenset()


def unsteady(df: Any, *, rerun: bool) -> list[str]:
    """Where in the plan of a DataFrame rows may come to another partition when they are computed again; no job runs.

    A `rerun` is another run of the program, which samples anew and has another time.
    """
    session, execution = df.sparkSession, df._jdf.queryExecution()
    look = _Look(rerun, sorts=session.conf.get(_SORT) == "true")
    look.at(execution.executedPlan())
    if rerun and _repartitions_the_time(session._jvm, execution.analyzed()):
        look.found.append("repartition(n) deals rows out by all their values, and the current time is one")
    return [*dict.fromkeys(look.found)]


class _Look:
    """A walk over a physical plan."""

    def __init__(self, rerun: bool, *, sorts: bool) -> None:
        self.found: list[str] = []
        self._rerun = rerun
        self._sorts = sorts

    def at(self, node: Any) -> _Rows:
        kind = node.getClass().getSimpleName()
        if kind == "AdaptiveSparkPlanExec":
            return self.at(node.initialPlan())
        if kind in ("InMemoryTableScanExec", "ReusedExchangeExec"):  # what is cached may be lost
            outer, inner = (node, node.child()) if kind[0] == "R" else (node.relation(), node.relation().cachedPlan())
            return _renamed(self.at(inner), inner, outer)
        below = [self.at(child) for child in _each(node.children())]
        rows = _Rows(
            all(each.ordered for each in below),
            all(each.fixed for each in below),
            frozenset().union(*(each.loose for each in below)),
        )
        if kind == "ShuffleExchangeExec":
            return self._shuffled(node, rows)
        if kind == "BroadcastExchangeExec":
            return replace(rows, ordered=False)
        if kind == "SampleExec" or kind.endswith("LimitExec"):
            return replace(rows, fixed=rows.fixed and rows.ordered)
        return _through(kind, node, rows)

    def _shuffled(self, node: Any, rows: _Rows) -> _Rows:
        by = node.outputPartitioning()
        how = by.getClass().getSimpleName()
        deals = how == "RoundRobinPartitioning"
        if by.numPartitions() > 1:
            if not rows.fixed:
                self.found.append(f"{_said(how)} of rows that are chosen by chance, or by the order in which they come")
            elif rows.loose and (deals or rows.loose & _ids(by.references())):
                self.found.append(f"{_said(how)} by values that are made by chance, or by the order of rows")
            elif deals and not self._sorts and not rows.ordered and self._rerun:
                self.found.append(f"repartition(n) by the order in which rows come, since {_SORT} is false")
            elif how == "RangePartitioning" and self._rerun:
                self.found.append("sorting cuts partitions at bounds that it samples in each run")
        return replace(rows, ordered=False)


def _through(kind: str, node: Any, rows: _Rows) -> _Rows:
    """What other nodes make of rows."""
    if kind == "SortExec":
        return replace(rows, ordered=rows.ordered or getattr(node, "global")())
    if not rows.loose and node.deterministic():
        return rows
    if not any(_is_loose(each, kind, rows) for each in _each(node.expressions())):
        return rows
    new = _ids(node.outputSet()).difference(*(_ids(child.outputSet()) for child in _each(node.children())))
    if kind == "ProjectExec":
        named = {each.toAttribute().exprId().id() for each in _each(node.projectList()) if _is_loose(each, kind, rows)}
        return replace(rows, loose=rows.loose | named)
    if kind.endswith("AggregateExec"):
        adds = not any(_is_loose(each, kind, rows) for each in _each(node.groupingExpressions()))
    else:
        adds = kind.startswith("Window") or "Python" in kind or "Arrow" in kind
    return replace(rows, loose=rows.loose | new) if adds else replace(rows, fixed=False)


def _is_loose(expression: Any, kind: str, rows: _Rows) -> bool:
    """Chance has a seed, but in a function of the user's."""
    by_chance = not expression.deterministic() and (not rows.ordered or "Python" in kind or "Arrow" in kind)
    return by_chance or bool(rows.loose and rows.loose & _ids(expression.references()))


def _repartitions_the_time(jvm: Any, plan: Any) -> bool:
    """Whether a repartition without columns has the current time among its rows."""
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    if not (plan.containsPattern(patterns.REPARTITION_OPERATION()) and plan.containsPattern(patterns.CURRENT_LIKE())):
        return False
    kind = plan.getClass().getSimpleName()
    if kind == "Repartition" and plan.shuffle() and plan.numPartitions() > 1:
        return True
    return any(_repartitions_the_time(jvm, child) for child in _each(plan.children()))


def _renamed(rows: _Rows, inner: Any, outer: Any) -> _Rows:
    """Under the ids that another node has for the same columns."""
    names = zip(_each(inner.output()), _each(outer.output()), strict=True)
    return replace(
        rows, loose=frozenset(here.exprId().id() for there, here in names if there.exprId().id() in rows.loose)
    )


def _said(partitioning: str) -> str:
    return {
        "RoundRobinPartitioning": "repartition(n)",
        "HashPartitioning": "a shuffle",
        "RangePartitioning": "sorting",
    }.get(partitioning, partitioning)


def _each(sequence: Any) -> Iterator[Any]:
    """What is in a collection of Scala's."""
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _ids(attributes: Any) -> frozenset[int]:
    return frozenset(attribute.exprId().id() for attribute in _each(attributes))

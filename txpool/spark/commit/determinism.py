"""Finds in a DataFrame's physical plan why a partition may have other rows when Spark computes it again.

Spark recomputes a partition after a failure, and a rerun of the program recomputes all of them. A random expression has
its seed in the plan, so it gives the same values again as long as the rows come in the same order. After a shuffle,
rows come in any order. That matters only where such a value, or a choice of rows that depends on it, decides to which
partition a row goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

_SORT = "spark.sql.execution.sortBeforeRepartition"


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows that a node of a plan returns."""

    #: The rows of each partition come in the same order every time.
    ordered: bool = True
    #: The rows are the same every time, except for the values in `volatile` columns.
    repeatable: bool = True
    #: Expression ids of the columns whose values may differ when they are computed again.
    volatile: frozenset[int] = frozenset()


def find_nondeterminism(df: Any, *, rerun: bool) -> list[str]:
    """The operations by which rows of a DataFrame may go to another partition when recomputed; runs no Spark job.

    `rerun` also counts what differs in another run of the program: sampled range bounds and the current time.
    """
    session, execution = df.sparkSession, df._jdf.queryExecution()
    walk = _PlanWalk(rerun, sorts=session.conf.get(_SORT) == "true")
    walk.visit(execution.executedPlan())
    if rerun and _repartitions_current_time(session._jvm, execution.analyzed()):
        walk.findings.append("repartition(n) distributes rows by all their values, and the current time is one of them")
    return [*dict.fromkeys(walk.findings)]


class _PlanWalk:
    """A walk over a physical plan."""

    def __init__(self, rerun: bool, *, sorts: bool) -> None:
        self.findings: list[str] = []
        self._rerun = rerun
        self._sorts = sorts

    def visit(self, node: Any) -> _Rows:
        kind = node.getClass().getSimpleName()
        if kind == "AdaptiveSparkPlanExec":
            return self.visit(node.initialPlan())
        if kind in ("InMemoryTableScanExec", "ReusedExchangeExec"):  # cached rows may be lost and computed again
            outer, inner = (node, node.child()) if kind[0] == "R" else (node.relation(), node.relation().cachedPlan())
            return _renamed(self.visit(inner), inner, outer)
        below = [self.visit(child) for child in _elements(node.children())]
        rows = _Rows(
            all(each.ordered for each in below),
            all(each.repeatable for each in below),
            frozenset().union(*(each.volatile for each in below)),
        )
        if kind == "ShuffleExchangeExec":
            return self._shuffled(node, rows)
        if kind == "BroadcastExchangeExec":
            return replace(rows, ordered=False)
        if kind == "SampleExec" or kind.endswith("LimitExec"):
            return replace(rows, repeatable=rows.repeatable and rows.ordered)
        return _after_node(kind, node, rows)

    def _shuffled(self, node: Any, rows: _Rows) -> _Rows:
        partitioning = node.outputPartitioning()
        kind = partitioning.getClass().getSimpleName()
        round_robin = kind == "RoundRobinPartitioning"
        if partitioning.numPartitions() > 1:
            if not rows.repeatable:
                self.findings.append(f"{_describe(kind)} of rows that are chosen at random, or by the order of rows")
            elif rows.volatile and (round_robin or rows.volatile & _ids(partitioning.references())):
                self.findings.append(f"{_describe(kind)} by values that are random, or depend on the order of rows")
            elif round_robin and not self._sorts and not rows.ordered and self._rerun:
                self.findings.append(f"repartition(n) by the order of rows, since {_SORT} is false")
            elif kind == "RangePartitioning" and self._rerun:
                self.findings.append("sorting splits partitions at bounds that it samples in each run")
        return replace(rows, ordered=False)


def _after_node(kind: str, node: Any, rows: _Rows) -> _Rows:
    """The rows after a node that neither shuffles nor limits them."""
    if kind == "SortExec":
        return replace(rows, ordered=rows.ordered or getattr(node, "global")())
    if not rows.volatile and node.deterministic():
        return rows
    if not any(_is_volatile(each, kind, rows) for each in _elements(node.expressions())):
        return rows
    new = _ids(node.outputSet()).difference(*(_ids(child.outputSet()) for child in _elements(node.children())))
    if kind == "ProjectExec":
        named = {
            each.toAttribute().exprId().id() for each in _elements(node.projectList()) if _is_volatile(each, kind, rows)
        }
        return replace(rows, volatile=rows.volatile | named)
    if kind.endswith("AggregateExec"):
        adds = not any(_is_volatile(each, kind, rows) for each in _elements(node.groupingExpressions()))
    else:
        adds = kind.startswith("Window") or "Python" in kind or "Arrow" in kind
    return replace(rows, volatile=rows.volatile | new) if adds else replace(rows, repeatable=False)


def _is_volatile(expression: Any, kind: str, rows: _Rows) -> bool:
    """Whether the value of an expression may differ next time.

    Spark's own random expressions have a seed, so they depend on the order of rows only. A Python function has none.
    """
    random = not expression.deterministic() and (not rows.ordered or "Python" in kind or "Arrow" in kind)
    return random or bool(rows.volatile and rows.volatile & _ids(expression.references()))


def _repartitions_current_time(jvm: Any, plan: Any) -> bool:
    """Whether a repartition without columns distributes rows that contain the current time."""
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    if not (plan.containsPattern(patterns.REPARTITION_OPERATION()) and plan.containsPattern(patterns.CURRENT_LIKE())):
        return False
    kind = plan.getClass().getSimpleName()
    if kind == "Repartition" and plan.shuffle() and plan.numPartitions() > 1:
        return True
    return any(_repartitions_current_time(jvm, child) for child in _elements(plan.children()))


def _renamed(rows: _Rows, inner: Any, outer: Any) -> _Rows:
    """The rows, with their volatile columns under the ids that another node has for the same columns."""
    names = zip(_elements(inner.output()), _elements(outer.output()), strict=True)
    return replace(
        rows, volatile=frozenset(here.exprId().id() for there, here in names if there.exprId().id() in rows.volatile)
    )


def _describe(partitioning: str) -> str:
    return {
        "RoundRobinPartitioning": "repartition(n)",
        "HashPartitioning": "a shuffle",
        "RangePartitioning": "sorting",
    }.get(partitioning, partitioning)


def _elements(sequence: Any) -> Iterator[Any]:
    """The elements of a Scala collection."""
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _ids(attributes: Any) -> frozenset[int]:
    return frozenset(attribute.exprId().id() for attribute in _elements(attributes))

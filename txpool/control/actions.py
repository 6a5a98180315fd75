"""What a request does in the process that receives it: to its pools, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

from txpool.control.messages import Request
from txpool.datasource import DataSource, opened
from txpool.datasource.administration import FlushMode
from txpool.errors import Error


def perform(request: Request) -> Mapping[str, Any]:
    """Do it, and return the answer: the numbers of each pool that it was about, or the error of a pool."""
    found = [each for each in opened() if isinstance(each, DataSource) and request.pool in (None, each.name)]
    failures = []
    for datasource in found:
        try:
            _perform(request, datasource)
        except Error as error:
            failures.append(str(error))
    pools = [asdict(datasource.statistics()) for datasource in found]
    return {"pid": os.getpid(), "pools": pools, "failures": failures}


def _perform(request: Request, datasource: DataSource) -> None:
    match request.do:
        case "resize":
            now = datasource.statistics()
            datasource.resize(
                now.min_size if request.min_size is None else request.min_size,
                now.max_size if request.max_size is None else request.max_size,
            )
        case "flush":
            datasource.flush(cast("FlushMode", request.how))
        case "suspend":
            datasource.suspend_pool()
        case "resume":
            datasource.resume_pool()

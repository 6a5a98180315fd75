"""A middleware of Django's: how a request is answered whose transaction has not committed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from django.http import HttpResponse

from txpool.django.sources import put_in_force
from txpool.errors import TransactionError
from txpool.web.responses import response_to

logger = logging.getLogger("txpool")


class OutcomeMiddleware:
    """Answers 503 if the transaction of ATOMIC_REQUESTS has rolled back, and 500 if its outcome is not certain.

    The text says which, and the error is logged. Without it, Django answers both alike, by its page for 500.
    """

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        put_in_force()  # before a view begins a transaction by txpool.transaction()
        self._get_response = get_response

    def __call__(self, request: Any) -> Any:
        return self._get_response(request)

    def process_exception(self, request: Any, exception: BaseException) -> Any:
        """Django calls it with the exception of a view, and of the blocks around that."""
        if not isinstance(exception, TransactionError):
            return None
        logger.error("%s %s has not committed", request.method, request.path, exc_info=exception)
        status, text = response_to(exception)
        code, _, reason = status.partition(" ")
        return HttpResponse(text, status=int(code), reason=reason, content_type="text/plain; charset=utf-8")

"""What a client is answered if the transaction of its request has not committed: only what is known of it."""

from __future__ import annotations

from txpool.errors import TransactionError, TransactionRolledBack

#: The status, and the text.
Answer = tuple[str, str]

_ROLLED_BACK: Answer = (
    "503 Service Unavailable",
    "The transaction of this request was rolled back: what the request did within it does not stay. If it did nothing "
    "else, it may be sent again.\n",
)
_UNCERTAIN: Answer = (
    "500 Internal Server Error",
    "What has become of this request is not certain: it may have been done, as a whole or in part. Do not send it "
    "again before that is settled; the server's log names its transaction.\n",
)


class ErrorResponse(Exception):
    """The application has answered with an error: the transaction rolls back."""


def answer_to(failure: TransactionError) -> Answer:
    """The answer to a request whose transaction has ended so."""
    return _ROLLED_BACK if isinstance(failure, TransactionRolledBack) else _UNCERTAIN

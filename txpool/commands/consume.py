"""The command `txpool consume`: the loop of a consumer."""

from __future__ import annotations

import os
import sys
from pkgutil import resolve_name
from typing import Annotated

import typer

from txpool.commands.outbox import Conf, errors_as_exit_codes
from txpool.commands.running import log_to_stderr, stopped_by_signals
from txpool.errors import ConfigurationError, described
from txpool.messages import Consumer


def consume(
    function: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="A function with @txpool.consumer.")],
    *,
    once: Annotated[bool, typer.Option("--once", help="End once there is nothing to receive now.")] = False,
    conf: Conf = None,
) -> None:
    """Call a consumer's function with batches of messages, until SIGTERM or SIGINT. Any number may run.

    It ends after the batch; a second signal rolls that back.
    """
    logger = log_to_stderr()
    with errors_as_exit_codes(conf):
        found = _consumer(function)
        found.session  # noqa: B018 - what is wrong from the beginning is an error
        stopped = stopped_by_signals()
        logger.info("%s: consuming", found.session.name)
        try:
            done = found.run(stopped, once=once)
        finally:
            found.session.close()  # so that a broker's group need not wait for it
        typer.echo(f"{done} done")


def _consumer(words: str) -> Consumer:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # last: a file of this folder is never taken for a module of another package
    try:
        found = resolve_name(words)
    except Exception as error:
        raise ConfigurationError(
            f"{words!r} cannot be loaded ({described(error)}): name module:function, and let PYTHONPATH lead to it"
        ) from error
    if not isinstance(found, Consumer):
        raise ConfigurationError(f"{words!r} is no consumer: write @txpool.consumer(session) above the function")
    return found

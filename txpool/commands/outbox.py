"""The commands `txpool outbox …`: the relay of a datasource's outbox, and what an operator does with messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from txpool import DataSource, Outbox, configure
from txpool.commands.running import log_to_stderr, stopped_by_signals
from txpool.config.keys import BROKERS
from txpool.errors import ConfigurationError, Error, OperationalError, described
from txpool.outbox.relays import delivery_to
from txpool.outbox.relays.broker import BrokerDelivery
from txpool.process.exit_codes import TxpoolExitCode

outboxes = typer.Typer(
    no_args_is_help=True,
    help="Deliver the messages of a datasource's outbox, and see what is in it.",
    epilog=escape(
        'JSON of list: {"datasource": text, "waiting": number, "oldest": seconds or null, "parked": number, '
        '"messages": [{"id": text, "key": text or null, "attempts": number, "error": text or null}, ...]}'
    ),
)

File = Annotated[Path, typer.Argument(help="The .properties file of the outbox's datasource.")]
Conf = Annotated[Path | None, typer.Option("--conf", help="The coordinator's .properties file; else as programs do.")]


@outboxes.command()
def init(file: File, conf: Conf = None) -> None:
    """Create the table of the outbox, unless it is there."""
    with errors_as_exit_codes(conf):
        datasource = DataSource.from_properties(file)
        Outbox(datasource).create()
        typer.echo(f"{datasource.name} has an outbox")


@outboxes.command()
def run(
    file: File,
    *,
    once: Annotated[bool, typer.Option("--once", help="End once nothing is left that can be delivered now.")] = False,
    conf: Conf = None,
) -> None:
    """Deliver each message as outbox.deliver says, until SIGTERM or SIGINT. Any number of relays may run.

    It ends after the message in delivery; a second signal rolls that back.
    """
    log_to_stderr()
    with errors_as_exit_codes(conf):
        datasource = DataSource.from_properties(file)
        outbox = Outbox(datasource)
        deliver = _deliver(datasource)
        relay = outbox.relay(deliver)
        try:
            if once:
                typer.echo(f"{relay.deliver_all()} delivered")
                return
            outbox.state()  # what is wrong from the beginning is an error
            relay.run(stopped_by_signals())
        finally:
            if isinstance(deliver, BrokerDelivery):
                deliver.close()


@outboxes.command("list")
def list_messages(
    file: File, *, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False, conf: Conf = None
) -> None:
    """How many messages wait, since when, and which are parked."""
    with errors_as_exit_codes(conf):
        outbox = Outbox(DataSource.from_properties(file))
        state, parked = outbox.state(), outbox.parked()
    if as_json:
        typer.echo(json.dumps(asdict(state) | {"messages": [asdict(each) for each in parked]}, indent=2))
        return
    since = "" if state.oldest is None else f", the oldest for {state.oldest:.0f} s"
    typer.echo(f"{state.datasource}: {state.waiting} waiting{since}; {state.parked} parked")
    for each in parked:
        key = "no key" if each.key is None else f"key {each.key}"
        error = " ".join((each.error or "").split())
        typer.echo(f"parked: {each.id}, {key}, {each.attempts} attempts: {error}")


@outboxes.command()
def retry(
    file: File,
    messages: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Parked messages.")] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All parked messages.")] = False,
    conf: Conf = None,
) -> None:
    """Let parked messages be delivered again, in their place before the later ones of their key."""
    if everything is bool(messages):
        raise typer.BadParameter("name the messages' ids, or write --all")
    with errors_as_exit_codes(conf):
        outbox = Outbox(DataSource.from_properties(file))
        found = {each: outbox.retry(each) for each in messages or (None,)}
    typer.echo(f"{sum(found.values())} will be delivered again")
    missing = [each for each, count in found.items() if each and not count]
    for each in missing:
        typer.echo(f"{each} is not parked", err=True)
    raise typer.Exit(TxpoolExitCode.NOT_FOUND if missing else TxpoolExitCode.OK)


def _deliver(datasource: DataSource) -> Callable[[Any], object]:
    name = datasource.settings.outbox_deliver
    if name is None:
        raise datasource.settings.properties.error(
            "outbox.deliver", "is missing: write outbox.deliver = package.module:function, which gets each message"
        )
    if name in BROKERS:
        return delivery_to(name, datasource.settings)
    module, _, function = name.partition(":")
    try:
        found: Callable[[Any], object] = getattr(import_module(module), function)
    except Exception as error:
        raise datasource.settings.properties.error(
            "outbox.deliver",
            f"cannot be loaded ({described(error)}): name package.module:function, and let PYTHONPATH lead to it",
        ) from error
    return found


@contextmanager
def errors_as_exit_codes(conf: Path | None) -> Iterator[None]:
    """What the commands end with if there is an error, once the coordinator is configured."""
    try:
        if conf is not None:
            configure(conf)
        yield
    except Error as error:
        text = "\n".join([str(error), *getattr(error, "__notes__", ())])
        Console(stderr=True, highlight=False, markup=False, emoji=False).print(text, style="red", soft_wrap=True)
        code = TxpoolExitCode.UNREACHABLE if isinstance(error, OperationalError) else TxpoolExitCode.WRONG
        raise typer.Exit(TxpoolExitCode.CONFIGURATION if isinstance(error, ConfigurationError) else code) from error

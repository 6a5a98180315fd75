"""The keys of sessions: of what sends and receives messages."""

from __future__ import annotations

from txpool.config.keys.key import Key

MESSAGE_KEYS = (
    Key("topic", "string", None, "The topic of a session with driver = kafka or jms."),
    Key("group", "string", None, "The group of consumers that a session with driver = kafka receives in."),
    Key(
        "offsets.datasource",
        "file",
        None,
        "The file of the datasource that keeps the group's positions, as rows, and what it has parked.",
    ),
    Key("queue", "string", None, "The queue of a session with driver = sql-queue or jms."),
    Key("queue.datasource", "file", None, "The file of the datasource that has the queue's table."),
    Key(
        "queue.ordered",
        "boolean",
        "false",
        "true receives the messages of one key in their order, those of one key in one transaction at a time.",
    ),
    Key(
        "parking",
        "string",
        None,
        "The queue for messages that a consumer could not do, in the table of the session's datasource; with driver = "
        "kafka also topic: and a topic of the same cluster. Without it, the session's name and -parked.",
    ),
    Key("parking.after", "integer", "10", "How often a consumer tries a message before it is parked.", {"min": 1}),
)

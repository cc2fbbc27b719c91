"""Who may do what in Redis: one user per kind of process, with the commands and the keys that it needs and no others.

Whoever takes over one process can do in Redis what that process does, and nothing else: Flower sees neither limits nor grants and can
fill no queue, the site and beat cannot touch what workers have taken. No user may list all keys, empty the server, throw away scripts
or change its configuration. docker-compose.yml has the same rules; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Read and write, without what concerns the server as a whole. INFO is what health checks and clients ask first.
_COMMANDS = ("+@all", "-@admin", "-@dangerous", "-function", "-fcall", "-fcall_ro", "+info")
#: Scripts, kombu's as well as ours, may do what their user may. Throwing away everybody's is for nobody.
_SCRIPTS = ("-script", "+script|load", "+script|exists")

_OURS = ("~orchestrator:*",)
_BINDINGS = ("~_kombu.binding*",)
_SYSTEM_QUEUES = (
    "~system*",
    "~dead-letter*",
    "~deliverable-period*",
    "~schedules*",
    "~webhook-outbound*",
    "~batches*",
    "~digest*",
    "~notifications__*",
)
_QUEUES = ("~agent__*", *_SYSTEM_QUEUES)
_LOOKING_AT_QUEUES = tuple(f"%R{pattern}" for pattern in _QUEUES)
_UNACKNOWLEDGED = ("~unacked*",)
_ANSWERS = ("~*.celery.pidbox*",)  # of workers to those who ask them something
_EVENTS = ("~celeryev*",)
_CHANNELS = (
    "&*",
)  # events and questions: a pattern can only be subscribed to by whoever may hear everything
_OF_FLOWER = ("~flower:*",)  # what it has not yet acknowledged of the events it hears

#: By kind of process: the rules behind its name and password.
REDIS_USERS: Mapping[str, tuple[str, ...]] = {
    "web": (*_OURS, *_QUEUES, *_BINDINGS, *_CHANNELS, *_COMMANDS, *_SCRIPTS),
    "worker": (
        *_OURS, *_QUEUES, *_BINDINGS, *_UNACKNOWLEDGED, *_ANSWERS, *_EVENTS, *_CHANNELS, *_COMMANDS, *_SCRIPTS,
    ),
    "beat": (*_OURS, *_QUEUES, *_BINDINGS, *_CHANNELS, *_COMMANDS, *_SCRIPTS),
    "flower": (*_LOOKING_AT_QUEUES, *_BINDINGS, *_ANSWERS, *_EVENTS, *_OF_FLOWER, *_CHANNELS, *_COMMANDS, *_SCRIPTS),
}  # fmt: skip

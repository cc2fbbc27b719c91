"""Who acts, as the audit trail names them: a kind, an id that nobody can choose, and a name for people."""

from __future__ import annotations

import getpass
from dataclasses import dataclass
from typing import Any

from tenants.principals import Principal


@dataclass(frozen=True, slots=True)
class Actor:
    kind: str  # user, token, run, command or nobody
    id: str = ""
    name: str = ""


NOBODY = Actor("nobody")


def actor_of(caller: Any) -> Actor:
    """The actor behind a principal, a person who signed in, or whatever calls itself `actor`."""
    if isinstance(caller, Principal):
        kind, _, name = caller.actor.partition(":")
        return Actor(kind, str(caller.token_id or caller.user_id), name)
    if getattr(caller, "is_authenticated", False) and hasattr(caller, "get_username"):
        return Actor("user", str(caller.pk), caller.get_username())
    kind, _, identity = str(getattr(caller, "actor", "") or "nobody").partition(":")
    return Actor(kind, identity)


def of_command(command: str) -> Actor:
    """Whoever runs a command at a shell: all that is known is the account of the machine."""
    try:
        account = getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in some containers
        account = "unknown"
    return Actor("command", command, account)

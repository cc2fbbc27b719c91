"""A tenant's own settings of a role, as they are put: checked as far as they can be without calling anybody."""

from __future__ import annotations

import re
from typing import Any

from django.conf import settings
from rest_framework import serializers

from agents import adapters
from agents.api.strict import OPTIONAL, Flag, Number, OneOf, StrictSerializer, Text, Whole

DAY = 86_400  # seconds
MOST_ATTEMPTS = 50
MOST_AT_ONCE = 100_000
MOST_WAITING = 10_000_000
LONGEST_INSTRUCTIONS = 50_000  # characters

#: The adapters that there are, by the names under which agents choose them.
ADAPTERS = tuple(adapters.names())

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_PRINTABLE = re.compile(r"[\x20-\x7e]+")
_INLINE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z]\w*", re.ASCII)

#: The members of each kind of credentials, those in parentheses optional.
AUTH_MEMBERS = {
    "bearer": ("token",),
    "header": ("name", "value"),
    "basic": ("username", "(password)"),
    "none": (),
}


class AuthSerializer(StrictSerializer):
    """Credentials for the agent's endpoint. Written only: they are shown as `{"type": ..., "set": true}`, and putting exactly that
    leaves them as they are."""

    type = OneOf(choices=list(AUTH_MEMBERS))
    token = Text(max_length=4_000, trim_whitespace=False, **OPTIONAL)
    name = Text(max_length=100, **OPTIONAL)
    value = Text(max_length=4_000, trim_whitespace=False, **OPTIONAL)
    username = Text(max_length=200, trim_whitespace=False, **OPTIONAL)
    password = Text(max_length=1_000, trim_whitespace=False, **OPTIONAL)
    set = Flag(help_text="true: keep the credentials of this type that are set.", **OPTIONAL)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        kind = attrs["type"]
        given = {name: value for name, value in attrs.items() if name not in ("type", "set")}
        members = AUTH_MEMBERS[kind]
        faults = {
            name: ["is not part of this type"]
            for name in given
            if name not in members and f"({name})" not in members
        }
        if not attrs.get("set"):
            faults |= {
                name: ["is required"] for name in members if name not in given and not name.startswith("(")
            }
        elif given:
            faults["set"] = ["is for keeping what is set; leave out the credentials"]
        if "name" in given and not _HEADER.fullmatch(given["name"]):
            faults.setdefault("name", ["must be the name of a header"])
        faults |= {
            name: ["must be printable ASCII"]
            for name in ("token", "value")
            if name in given and name not in faults and not _PRINTABLE.fullmatch(given[name])
        }
        if faults:
            raise serializers.ValidationError(faults)
        return attrs


class RetrySerializer(StrictSerializer):
    """When to try again. What is left out comes from the registry, then from the defaults."""

    max_attempts = Whole(min_value=1, max_value=MOST_ATTEMPTS, **OPTIONAL)
    strategy = OneOf(choices=["exponential", "linear", "fixed"], **OPTIONAL)
    base_seconds = Number(min_value=0, max_value=DAY, **OPTIONAL)
    multiplier = Number(min_value=1, max_value=100, **OPTIONAL)
    max_seconds = Number(min_value=0, max_value=DAY, **OPTIONAL)
    jitter = Number(min_value=0, max_value=1, **OPTIONAL)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs.get("max_seconds", DAY) < attrs.get("base_seconds", 0):
            raise serializers.ValidationError({"max_seconds": ["must not be below base_seconds"]})
        return attrs


class RateSerializer(StrictSerializer):
    """A bucket of starts: so many at once, and so many per second."""

    capacity = Number(min_value=1, max_value=1_000_000)
    per_second = Number(min_value=0.0001, max_value=1_000_000)


class BacklogSerializer(StrictSerializer):
    """What happens to work that waits too long or is too much. What is left out comes from the registry."""

    max_waiting = Whole(
        min_value=1,
        max_value=MOST_WAITING,
        help_text="Beyond the platform's own bound it changes nothing.",
        **OPTIONAL,
    )
    when_full = OneOf(
        choices=["reject", "drop_oldest", "evict_lowest"],
        help_text="Only background work that nobody waits for is ever given up; else the submission is answered 429.",
        **OPTIONAL,
    )
    expire_after_seconds = Number(
        min_value=1,
        max_value=365 * DAY,
        help_text="For new background work that nobody waits for and that has no expires_at.",
        **OPTIONAL,
    )


class AgentSettingsSerializer(StrictSerializer):
    """A tenant's own settings of a role. What is left out comes from the registry."""

    max_concurrency = Whole(min_value=1, max_value=MOST_AT_ONCE, **OPTIONAL)
    max_concurrency_per_group = Whole(
        min_value=1,
        max_value=MOST_AT_ONCE,
        help_text="Activities with the same `group_key` at once; 1 if left out.",
        **OPTIONAL,
    )
    adapter = OneOf(choices=list(ADAPTERS), **OPTIONAL)
    endpoint = Text(
        max_length=500, help_text="A URL for http; package.module:function for inline.", **OPTIONAL
    )
    auth = AuthSerializer(**OPTIONAL)
    model = Text(max_length=100, **OPTIONAL)
    instructions = Text(
        allow_blank=True,
        max_length=LONGEST_INSTRUCTIONS,
        trim_whitespace=False,
        help_text="What the agent is and how it works, told with every task. A change begins new sessions.",
        **OPTIONAL,
    )
    timeout_seconds = Whole(min_value=1, max_value=DAY, **OPTIONAL)
    retry = RetrySerializer(**OPTIONAL)
    rate = RateSerializer(**OPTIONAL)
    backlog = BacklogSerializer(**OPTIONAL)
    enabled = Flag(**OPTIONAL)


def fault_of_inline(endpoint: str) -> str | None:
    """What keeps this from being run as a function of this installation, or None."""
    if not _INLINE.fullmatch(endpoint):
        return "must be of the form package.module:function"
    dotted = endpoint.replace(":", ".")
    prefixes = settings.ORCHESTRATOR_INLINE_CALLABLES
    if not any(dotted == prefix or dotted.startswith(f"{prefix.rstrip('.')}.") for prefix in prefixes):
        return "is not among the functions that may be run inline"
    return None

"""What is posted to a mailbox, and what a consumer says."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from activities.mailboxes import NewItem
from activities.mailboxes.taking import Wish
from activities.models.mailbox import ItemKind, ItemSource
from agents import configuration
from agents.api.strict import OPTIONAL, Flag, Json, Moment, Number, OneOf, StrictSerializer, Text, Whole

LONGEST_KEY = 200
LONGEST_LEASE = 86_400  # seconds
LONGEST_WINDOW = 1_000  # milliseconds; the request waits as long
LARGEST_BATCH = 100


@extend_schema_field({"type": "string"})  # another body has a `source` with other words
class SourceField(OneOf):
    """Who says it."""


class NewItemSerializer(StrictSerializer):
    """Something that is said: `content` (JSON, as of a message) or `text` or both."""

    kind = OneOf(choices=ItemKind.values)
    content = Json(**OPTIONAL)
    text = Text(trim_whitespace=False, allow_blank=True, **OPTIONAL)
    source = SourceField(
        choices=ItemSource.values, help_text="user, system or hook; `user` if not given.", **OPTIONAL
    )  # type: ignore[assignment]
    priority = Whole(min_value=0, max_value=9, help_text="Lower first; 5 if not given.", **OPTIONAL)
    run_after = Moment(**OPTIONAL)
    max_attempts = Whole(min_value=1, max_value=50, help_text="3 if not given.", **OPTIONAL)
    backoff_multiplier = Number(min_value=1, max_value=10, help_text="2 if not given.", **OPTIONAL)
    max_backoff_ms = Whole(min_value=0, max_value=86_400_000, help_text="300000 if not given.", **OPTIONAL)
    is_coalescable = Flag(
        help_text="Whether it may be told with others. Task notifications never may.", **OPTIONAL
    )
    client_message_id = Text(
        max_length=200, help_text="Said again under the same id, it is the same item.", **OPTIONAL
    )
    agent_role = Text(
        max_length=63, help_text="Whose mailbox it is. Without one, whoever takes from it has it.", **OPTIONAL
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        faults: dict[str, list[str]] = {}
        if "content" not in attrs and not attrs.get("text"):
            faults["content"] = ["is required, unless text is given"]
        if attrs["kind"] == ItemKind.TASK_NOTIFICATION and attrs.get("is_coalescable"):
            faults["is_coalescable"] = ["cannot be true for a task_notification: each is told by itself"]
        role = attrs.get("agent_role")
        if role and role not in configuration.known_roles():
            faults["agent_role"] = [f"{role!r} is no role of the registry; GET /api/v1/agents/ lists them"]
        if faults:
            raise serializers.ValidationError(faults)
        return attrs


def new_item(attrs: dict[str, Any]) -> NewItem:
    """From what was validated to what is posted."""
    backoff = {}
    if "backoff_multiplier" in attrs:
        backoff["multiplier"] = attrs["backoff_multiplier"]
    if "max_backoff_ms" in attrs:
        backoff["max_seconds"] = attrs["max_backoff_ms"] / 1000
    plain = {
        name: value for name, value in attrs.items() if name not in ("backoff_multiplier", "max_backoff_ms")
    }
    return NewItem(**plain, backoff=backoff)


class TakeSerializer(StrictSerializer):
    consumer = Text(max_length=200)
    window_ms = Whole(
        min_value=0,
        max_value=LONGEST_WINDOW,
        help_text="How long after the first item others may still join; the answer waits for it. 50 if not given.",
        **OPTIONAL,
    )
    lease_seconds = Number(min_value=0.1, max_value=LONGEST_LEASE, help_text="300 if not given.", **OPTIONAL)
    limit = Whole(min_value=1, max_value=LARGEST_BATCH, help_text="10 if not given.", **OPTIONAL)


def wish_of(attrs: dict[str, Any]) -> Wish:
    return Wish(
        consumer=attrs["consumer"],
        lease=timedelta(seconds=attrs.get("lease_seconds", 300)),
        window=timedelta(milliseconds=attrs.get("window_ms", 50)),
        limit=attrs.get("limit", 10),
    )


class CompletedSerializer(StrictSerializer):
    result = Json(**OPTIONAL)


class FailedSerializer(StrictSerializer):
    error = Json(help_text="Text, or an object with `message`.")
    retryable = Flag(help_text="Whether trying again may help; true if not given.", **OPTIONAL)


def error_of(given: Any) -> dict[str, Any]:
    """As it is kept."""
    return dict(given) if isinstance(given, dict) else {"message": str(given)}


class BeatSerializer(StrictSerializer):
    lease_seconds = Number(
        min_value=0.1, max_value=LONGEST_LEASE, help_text="From now on; 300 if not given.", **OPTIONAL
    )

"""What a message from the broker may say, and what is written down when one says something else.

Whoever can write to Redis can push any message. None is believed: what it names must be of the right form, then the grant must be held and
the claim must succeed. A refused one changes nothing; it is logged, so that somebody who tries is seen.
"""

from __future__ import annotations

import logging
from uuid import UUID

from activities.admission import Grant

logger = logging.getLogger(__name__)

LONGEST_GRANT = 100  # characters; ours have a quarter of that
LONGEST_ROLE = 63


class MalformedMessage(ValueError):
    """The arguments are not those of a message of ours."""


def read(*, tenant: object, activity: object, grant: object, role: object) -> Grant:
    """The grant that a message tells of. Raises `MalformedMessage`."""
    if not isinstance(grant, str) or not 0 < len(grant) <= LONGEST_GRANT:
        raise MalformedMessage("grant")
    if not isinstance(role, str) or not 0 < len(role) <= LONGEST_ROLE:
        raise MalformedMessage("role")
    return Grant(_id("activity", activity), _id("tenant", tenant), role, grant, started=False)


def refuse(why: str, grant: Grant | None = None) -> None:
    """Write down a message that none of our processes has sent."""
    named = {"tenant": str(grant.tenant_id), "activity": str(grant.activity_id)} if grant else {}
    logger.warning("Message refused", extra={"action": "message_refused", "reason": why, **named})


def note_stale(grant: Grant) -> None:
    """A second delivery, one of long ago, or one that was made up: from here they look the same, and nothing follows."""
    logger.info(
        "Message without a grant",
        extra={
            "action": "message_stale",
            "tenant": str(grant.tenant_id),
            "activity": str(grant.activity_id),
        },
    )


def _id(name: str, value: object) -> UUID:
    if not isinstance(value, str) or len(value) != 36:
        raise MalformedMessage(name)
    try:
        return UUID(value)
    except ValueError as error:
        raise MalformedMessage(name) from error

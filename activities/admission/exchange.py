"""The admission call: releases slots, takes offers and returns grants."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Self
from uuid import UUID

import orjson
from django.conf import settings

from activities import file_scopes
from activities.admission import scripts
from tenants import tracing

logger = logging.getLogger(__name__)

LEVEL_MS = 30_000  # 30 s of waiting count as much as one level of priority, among the work of one tenant.
GRANTS_PER_CALL = 500  # Bounds one call to some milliseconds.
# A claim that commits later than this after its slot was confirmed must confirm the slot again.
CLAIM_SECONDS = 0.5


class Offer(NamedTuple):
    """An activity that is ready to run."""

    activity_id: UUID
    tenant_id: UUID
    role: str
    priority: int
    since: datetime
    group_key: str | None
    group_scope: str = "role"
    files: tuple[str, ...] = ()
    pipeline_id: UUID | None = None
    schedule_id: UUID | None = None
    run_now_at: datetime | None = None

    @classmethod
    def of(cls, activity: Any) -> Self:
        """`activity`: a row of Activity for an agent, as a model or a `transitions.Moved`."""
        return cls(
            activity.id,
            activity.tenant_id,
            activity.agent_role,
            activity.priority,
            activity.created_at,
            activity.group_key,
            activity.group_scope,
            tuple(activity.files),
            activity.pipeline_id,
            activity.schedule_id,
            activity.run_now_at,
        )

    def arguments(self) -> list[object]:
        since, band = int(self.since.timestamp() * 1000), band_of(self.priority)
        score = since + self.priority * LEVEL_MS
        return [
            str(self.activity_id),
            str(self.tenant_id),
            self.role,
            band,
            score,
            lane_key_of(self),
            since,
            "\n".join(self.files),
            int(self.run_now_at.timestamp() * 1000) if self.run_now_at else 0,
        ]


def lane_key_of(work: Any) -> str:
    """Return the key of the work's lane within its tenant, role and band. Work in one lane is subject to the same limits.

    `work`: an offer or a row of Activity.
    """
    if not work.group_key and not work.files and not work.pipeline_id and not work.schedule_id:
        return ""
    origin = f"{work.pipeline_id or ''}|{work.schedule_id or ''}"
    return f"{work.group_scope}|{file_scopes.digest_of(work.files)}|{origin}|{work.group_key or ''}"


class Release(NamedTuple):
    """A slot that is no longer needed. `unused`: nothing was started with it, so rate limits do not count it."""

    activity_id: UUID
    grant: str
    unused: bool = False


class Hold(NamedTuple):
    """A provider takes no work of this role for `seconds`. Urgent work is held too if `urgent` is true."""

    tenant_id: UUID
    role: str
    urgent: bool
    seconds: float
    code: str  # of `/why/`
    holder: str  # for people


class Grant(NamedTuple):
    """An activity that may go to a worker now. `started`: the caller runs it itself."""

    activity_id: UUID
    tenant_id: UUID
    role: str
    grant: str
    started: bool


class Grants(list[Grant]):
    """Grants, and hints for the caller.

    `ask_again_seconds`: when the caller must call again, because a rate limit then has a token for waiting work. Only one caller at a time
    gets it. `others_wait`: other work is waiting.
    """

    ask_again_seconds: float | None = None
    others_wait: bool = False


@dataclass(slots=True)
class Exchange:
    """The changes that one call sends. It is safe to repeat a call whose answer was lost.

    For each activity the last change counts: a later withdrawal cancels an offer, and a later offer counts again.
    """

    releases: list[Release] = field(default_factory=list)
    offers: list[Offer] = field(default_factory=list)
    withdrawals: list[UUID] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    causes: list[tracing.Cause] = field(default_factory=list)  # the spans that caused the changes
    # How many of the offers came before the withdrawal.
    _withdrawn_before: dict[UUID, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.releases or self.offers or self.withdrawals or self.holds)

    @property
    def size(self) -> int:
        """The number of changes of activities."""
        return len(self.releases) + len(self.offers) + len(self.withdrawals)

    def add(self, other: Exchange) -> None:
        for gone in other.withdrawals:
            self._withdrawn_before[gone] = len(self.offers) + other._withdrawn_before.get(gone, 0)
        self.releases += other.releases
        self.offers += other.offers
        self.withdrawals += other.withdrawals
        self.holds += other.holds
        if len(self.causes) < tracing.MOST_CAUSES:
            self.causes += [cause for cause in other.causes if cause not in self.causes]

    def current_offers(self) -> list[Offer]:
        """Return the offers without those withdrawn later. Of several for one activity it is the last, which has the current priority.

        Work without a role is a person's, and is offered only by a mistake of the caller. It is left out, because the script would fail for
        the changes of all tenants.
        """
        current = {
            offer.activity_id: offer
            for place, offer in enumerate(self.offers)
            if place >= self._withdrawn_before.get(offer.activity_id, 0)
        }
        offers = [offer for offer in current.values() if offer.role]
        if len(offers) < len(current):
            without = [str(offer.activity_id) for offer in current.values() if not offer.role]
            logger.error(
                "Work without a role was offered", extra={"action": "offer_left_out", "activities": without}
            )
        return offers

    def drop_offer(self, activity_id: UUID) -> None:
        """Remove the offers of an activity that already holds a slot."""
        stays = [offer.activity_id != activity_id for offer in self.offers]
        self.offers = [offer for offer, stay in zip(self.offers, stays, strict=True) if stay]
        self._withdrawn_before = {gone: sum(stays[:place]) for gone, place in self._withdrawn_before.items()}

    def drop_release(self, activity_id: UUID) -> None:
        """Remove the release of a slot that was passed on."""
        self.releases = [release for release in self.releases if release.activity_id != activity_id]

    def take(self) -> Exchange:
        taken = Exchange(
            self.releases, self.offers, self.withdrawals, self.holds, self.causes, self._withdrawn_before
        )
        Exchange.__init__(self)
        return taken

    def drop_offers(self) -> None:
        """Remove all offers. Recovery makes them again."""
        self.offers.clear()
        self._withdrawn_before.clear()


def band_of(priority: int) -> int:
    """1 urgent, 2 gated, 3 normal, 4 background."""
    return 1 if priority < 5 else 2 if priority < 10 else 3 if priority < 20 else 4


def find_unknown(offers: Sequence[Offer]) -> set[UUID]:
    """Return the activities that admission does not know in the offered form, so that offering them would change something.

    Raises `Closed` and the errors of Redis.
    """
    answer = scripts.run("find_unknown", orjson.dumps([offer.arguments() for offer in offers]))
    if answer == b"closed":
        raise scripts.Closed
    return {UUID(activity) for activity in orjson.loads(answer)}


def exchange(changes: Exchange, *, start_roles: Iterable[str] = (), start: int = 0) -> Grants:
    """Send the changes and return new grants. The caller runs at most `start` of them, of `start_roles`, itself.

    Raises `Closed`, or `redis.RedisError` if there is no answer.
    """
    answer = scripts.run(
        "exchange",
        orjson.dumps(
            {
                "release": [
                    [str(item.activity_id), item.grant, int(item.unused)] for item in changes.releases
                ],
                "withdraw": [str(item) for item in changes.withdrawals],
                "offer": [offer.arguments() for offer in changes.current_offers()],
                "hold": [
                    [
                        str(item.tenant_id),
                        item.role,
                        int(item.urgent),
                        int(item.seconds * 1000),
                        item.code,
                        item.holder,
                    ]
                    for item in changes.holds
                ],
                "limit": GRANTS_PER_CALL,
                "ageing_ms": int(settings.ORCHESTRATOR_AGEING_SECONDS * 1000),
                "share": settings.ORCHESTRATOR_AGED_SHARE,
                "start_roles": list(start_roles),
                "start": start,
            }
        ),
    )
    if answer == b"closed":
        raise scripts.Closed
    reply = orjson.loads(answer)
    grants = Grants(
        Grant(UUID(activity), UUID(tenant), role, grant, bool(started))
        for activity, tenant, role, grant, started in reply.get("grants", ())
    )
    grants.ask_again_seconds = reply["ask"] / 1000 if "ask" in reply else None
    grants.others_wait = "waits" in reply
    return grants

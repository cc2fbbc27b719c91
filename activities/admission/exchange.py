"""One call that gives slots back, takes new waiters and hands out grants; and which offers would be news to it."""

from __future__ import annotations

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

LEVEL_MS = 30_000  # Waiting 30 s is worth one level of priority among a tenant's own work.
GRANTS_PER_CALL = 500  # Bounds one script run to some milliseconds.
# A claim that took longer than this since its slot was held asks for the slot again before it commits.
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
        """`activity` is a row of Activity that an agent does: a model, or a `transitions.Moved`."""
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
            line_of(self),
            since,
            "\n".join(self.files),
            int(self.run_now_at.timestamp() * 1000) if self.run_now_at else 0,
        ]


def line_of(of: Any) -> str:
    """What sets work apart from other work of its tenant, role and band: those with an equal line are eligible together. `of` is an offer
    or a row of Activity."""
    if not of.group_key and not of.files and not of.pipeline_id and not of.schedule_id:
        return ""
    origin = f"{of.pipeline_id or ''}|{of.schedule_id or ''}"
    return f"{of.group_scope}|{file_scopes.digest_of(of.files)}|{origin}|{of.group_key or ''}"


class Release(NamedTuple):
    """A slot that is no longer needed. `unused`: nothing was started with it, so limits over time count it no more."""

    activity_id: UUID
    grant: str
    unused: bool = False


class Hold(NamedTuple):
    """A provider cannot take work of this role for so long; urgent work neither, or only what is not `urgent`."""

    tenant_id: UUID
    role: str
    urgent: bool
    seconds: float
    code: str  # of `/why/`
    holder: str  # for people


class Grant(NamedTuple):
    """An activity that may go to a worker now. `started` when the caller asked to run it itself."""

    activity_id: UUID
    tenant_id: UUID
    role: str
    grant: str
    started: bool


class Grants(list[Grant]):
    """`ask_again_seconds`: when the caller should exchange again, because a rate has a token then for something that waits. Only one
    caller at a time gets it. `others_wait`: whether anything waits beside what was granted."""

    ask_again_seconds: float | None = None
    others_wait: bool = False


@dataclass(slots=True)
class Exchange:
    """What one call brings. Repeating it after a lost answer is safe.

    Of one activity the last word counts: an offer that a later `add` withdraws is none, and one that comes after a withdrawal is.
    """

    releases: list[Release] = field(default_factory=list)
    offers: list[Offer] = field(default_factory=list)
    withdrawals: list[UUID] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    causes: list[tracing.Cause] = field(default_factory=list)  # the spans that it comes from
    _withdrawn_before: dict[UUID, int] = field(
        default_factory=dict
    )  # how many of the offers came before the withdrawal

    def __bool__(self) -> bool:
        return bool(self.releases or self.offers or self.withdrawals or self.holds)

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
        """Those that no later withdrawal takes back; of several of one activity the last, which knows its present priority."""
        current = {
            offer.activity_id: offer
            for place, offer in enumerate(self.offers)
            if place >= self._withdrawn_before.get(offer.activity_id, 0)
        }
        return list(current.values())

    def drop_offer(self, activity_id: UUID) -> None:
        """The activity holds a slot already."""
        stays = [offer.activity_id != activity_id for offer in self.offers]
        self.offers = [offer for offer, its in zip(self.offers, stays, strict=True) if its]
        self._withdrawn_before = {gone: sum(stays[:place]) for gone, place in self._withdrawn_before.items()}

    def drop_release(self, activity_id: UUID) -> None:
        """The slot was passed on."""
        self.releases = [release for release in self.releases if release.activity_id != activity_id]

    def take(self) -> Exchange:
        """All that it has, and has no more then."""
        taken = Exchange(
            self.releases, self.offers, self.withdrawals, self.holds, self.causes, self._withdrawn_before
        )
        Exchange.__init__(self)
        return taken

    def drop_offers(self) -> None:
        """Recovery finds them again."""
        self.offers.clear()
        self._withdrawn_before.clear()


def band_of(priority: int) -> int:
    """1 urgent, 2 gated, 3 normal, 4 background."""
    return 1 if priority < 5 else 2 if priority < 10 else 3 if priority < 20 else 4


def find_unknown(offers: Sequence[Offer]) -> set[UUID]:
    """The activities that admission does not know as they are offered here, so that an exchange would change something.

    Raises `Closed` and the errors of Redis.
    """
    answer = scripts.run("find_unknown", orjson.dumps([offer.arguments() for offer in offers]))
    if answer == b"closed":
        raise scripts.Closed
    return {UUID(activity) for activity in orjson.loads(answer)}


def exchange(what: Exchange, *, start_roles: Iterable[str] = (), start: int = 0) -> Grants:
    """Apply `what` and return new grants. Raises `Closed`, or `redis.RedisError` when there is no answer."""
    answer = scripts.run(
        "exchange",
        orjson.dumps(
            {
                "release": [[str(item.activity_id), item.grant, int(item.unused)] for item in what.releases],
                "withdraw": [str(item) for item in what.withdrawals],
                "offer": [offer.arguments() for offer in what.current_offers()],
                "hold": [
                    [
                        str(item.tenant_id),
                        item.role,
                        int(item.urgent),
                        int(item.seconds * 1000),
                        item.code,
                        item.holder,
                    ]
                    for item in what.holds
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

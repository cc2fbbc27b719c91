"""Pauses: what keeps new work of a role from starting, apart from its turn. A disabled or deleted role counts as paused."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple
from uuid import UUID

from django.db.models import Exists, OuterRef, Subquery

from activities.models import Activity
from agents.governor import providers
from agents.models import Agent, AgentConfig
from tenants import pausing
from tenants.models import Pause as PausedPart
from tenants.models import PauseKind, Tenant

_TENANT = "The tenant"


class Pause(NamedTuple):
    """What starts nothing new. `how`: "resume" helps only what is paused."""

    who: str
    how: str = "paused"


@dataclass(frozen=True, slots=True)
class Pauses:
    """The pauses of a tenant. Disabled and deleted roles count as paused."""

    of_roles: Mapping[str, Sequence[Pause]] = field(default_factory=dict)
    firm: Mapping[str, Pause] = field(default_factory=dict)  # by role: pauses that "run now" does not bypass
    named: Mapping[tuple[str, str], str] = field(default_factory=dict)  # by kind and subject

    def are_on(self, role: str) -> bool:
        """Whether no new work of the role starts, unless people let it run now."""
        return role in self.firm or bool(self.of_roles.get(role))

    def of(self, activity: Activity) -> Pause | None:
        role = activity.agent_role or ""
        if (firm := self.firm.get(role)) is not None:
            return firm
        if activity.run_now_at is not None:
            return None
        origins = (
            (PauseKind.PIPELINE, activity.pipeline_id),
            (PauseKind.SCHEDULE, activity.schedule_id),
        )
        named = (self.named.get((kind, str(subject))) for kind, subject in origins if subject is not None)
        return next(chain(self.of_roles.get(role, ()), (Pause(who) for who in named if who)), None)


def read_pauses(tenant_id: UUID, roles: Collection[str]) -> Pauses:
    """Return the pauses that concern these roles, in two statements. In the caller's `tenant_scope`."""
    if not roles:
        return Pauses()
    tenant = Tenant.objects.filter(pk=tenant_id)
    own = AgentConfig.objects.for_tenant(tenant_id).filter(agent_id=OuterRef("role"))
    rows = Agent.objects.filter(role__in=roles).annotate(
        tenant_off=Exists(tenant.filter(is_active=False)),
        tenant_paused=Exists(tenant.filter(paused=True)),
        own_off=Exists(own.filter(enabled=False)),
        own_paused=Exists(own.filter(paused=True)),
        own_adapter=Subquery(own.values("adapter")[:1]),
    )
    named = {key: _name_of(part) for key, part in pausing.parts_of(tenant_id).items()}
    of_roles: dict[str, Sequence[Pause]] = {}
    # Until it is read below, as if it was deleted, which the work of an inactive tenant does not prevent.
    firm = {role: Pause(f"The role {role}", "deleted") for role in roles}
    for agent in rows.only("role", "paused", "enabled", "adapter"):
        del firm[agent.role]
        if agent.tenant_off:
            firm[agent.role] = Pause(_TENANT, "inactive")
        elif agent.paused or not agent.enabled:
            how = "paused" if agent.enabled else "disabled"
            firm[agent.role] = Pause(f"The role {agent.role} for all tenants", how)
        elif agent.own_off:
            firm[agent.role] = Pause(f"The role {agent.role}", "disabled")
        provider = providers.name_of(agent.own_adapter or agent.adapter) or ""
        of_roles[agent.role] = [
            Pause(who)
            for who, is_paused in (
                (_TENANT, agent.tenant_paused),
                (f"The role {agent.role}", agent.own_paused),
                (named.get((PauseKind.PROVIDER, provider), ""), True),
            )
            if is_paused and who
        ]
    return Pauses(of_roles, firm, named)


def find_pauses(
    tenant_id: UUID, roles: Collection[str], *, pipeline_id: UUID | None = None
) -> list[tuple[str, str]]:
    """Return what would keep new work of these roles, or of the pipeline, from starting, as in `("The role seo", "paused")`.

    Without a pause of the whole tenant. In the caller's `tenant_scope`.
    """
    paused = read_pauses(tenant_id, roles)
    named = pausing.parts_of(tenant_id, PauseKind.PIPELINE).get((PauseKind.PIPELINE, str(pipeline_id)))
    found = [*paused.firm.values(), *chain.from_iterable(paused.of_roles.values())]
    found += [Pause(_name_of(named))] if named else []
    return [(each.who, each.how) for each in dict.fromkeys(found) if each.who != _TENANT]


def _name_of(part: PausedPart) -> str:
    return f"The {part.kind} {part.name}"

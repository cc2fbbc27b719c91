"""Deployments: which version of an agent serves, and how that changes. The only writer of its table.

Every change is one transaction and a compare-and-set on the row that was seen in production: of two at once one is done and the other
is told, and at no moment are there two versions in production, or none in between. What was replaced stays as history. Runs under way
keep the version that they were claimed with; new ones get the present one within a second. Promoting ends no sessions: a version
that must not continue the conversations of the one before is given other instructions, which is what begins new ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import F, QuerySet
from django.db.models.functions import Now

from agents import semantic_versions
from agents.exceptions import (
    AlreadyInProduction,
    DeploymentConflict,
    NotFound,
    NothingToRollBackTo,
    VersionInvalid,
)
from agents.models import Agent, AgentVersionDeployment, Health
from tenants.context import current_alias

Environment = AgentVersionDeployment.Environment


def in_production(role: str) -> AgentVersionDeployment | None:
    """The version that serves now."""
    return _current().filter(agent_id=role, environment=Environment.PRODUCTION).first()


def serving(roles: Collection[str]) -> list[AgentVersionDeployment]:
    """The versions that serve now, of those of these roles that have one."""
    return list(_current().filter(agent_id__in=roles, environment=Environment.PRODUCTION))


def history(role: str) -> list[AgentVersionDeployment]:
    """All deployments of an agent, newest first."""
    return list(AgentVersionDeployment.objects.filter(agent_id=role).order_by("-deployed_at", "-id"))


def deploy(
    role: str, version: str, environment: str, *, actor: str, endpoint: str = ""
) -> AgentVersionDeployment:
    """Put a version into an environment. In production it replaces the version there, elsewhere only its own earlier deployment.

    Raises `NotFound`, `VersionInvalid`, `AlreadyInProduction` or `DeploymentConflict`.
    """
    if error := semantic_versions.error_of(version):
        raise VersionInvalid(error)
    if not Agent.objects.filter(role=role).exists():
        raise NotFound("agent", role)
    new = AgentVersionDeployment(
        agent_id=role,
        version=version,
        environment=Environment(environment),
        endpoint=endpoint,
        deployed_by=actor,
    )
    if new.environment == Environment.PRODUCTION:
        return _put_into_production(new, seen=in_production(role))
    with _translate_conflicts(), transaction.atomic(using=current_alias()):
        same = _current().filter(agent_id=role, version=version, environment=new.environment)
        same.update(replaced_at=Now(), replaced_by=actor)
        return _save(new)


def promote(role: str, deployment_id: UUID, *, actor: str) -> AgentVersionDeployment:
    """Make this deployment's version, with its endpoint, the one in production. Works for former ones as well.

    Raises `NotFound`, `AlreadyInProduction`, or `DeploymentConflict` when another version came into production meanwhile.
    """
    seen = in_production(role)
    deployment = AgentVersionDeployment.objects.filter(pk=deployment_id, agent_id=role).first()
    if deployment is None:
        raise NotFound(f"deployment of the agent {role!r}", deployment_id)
    return _put_into_production(_copy(deployment, actor, promoted_from=deployment), seen=seen)


def roll_back(role: str, *, actor: str) -> AgentVersionDeployment:
    """Bring back the version that was in production before the present one; again, the one before that, and so on.

    Raises `NothingToRollBackTo`, or `DeploymentConflict` when another version came into production meanwhile.
    """
    seen = in_production(role)
    before = seen.previous if seen else None
    if seen is None or before is None:
        present = f"{seen.version} is the first" if seen else "there is none yet"
        raise NothingToRollBackTo(
            f"No version of {role!r} was in production before: {present}. Deploy the version that you want and promote it."
        )
    return _put_into_production(
        _copy(before, actor, promoted_from=before), seen=seen, previous=before.previous
    )


#: What `_put_into_production` keeps as the way back, unless it is told otherwise: the version that it replaces.
_REPLACED: Any = object()


def _put_into_production(
    new: AgentVersionDeployment, *, seen: AgentVersionDeployment | None, previous: Any = _REPLACED
) -> AgentVersionDeployment:
    """Replace the version `seen` in production, unless it is not the one there any more."""
    if seen is not None and (seen.version, seen.endpoint) == (new.version, new.endpoint):
        raise AlreadyInProduction(f"{seen.version} is in production already.")
    with _translate_conflicts(), transaction.atomic(using=current_alias()):
        if seen is not None:
            replaced = _current().filter(pk=seen.pk)
            if not replaced.update(replaced_at=Now(), replaced_by=new.deployed_by):
                raise DeploymentConflict(_CONFLICT)
        new.previous = seen if previous is _REPLACED else previous
        return _save(new)


def _save(new: AgentVersionDeployment) -> AgentVersionDeployment:
    new.save(force_insert=True)
    changes: dict[str, Any] = {"revision": F("revision") + 1}
    if new.environment == Environment.PRODUCTION:
        # Another address: what was known about the one before says nothing about it.
        changes |= {
            "health": Health.UNKNOWN,
            "health_detail": "",
            "health_failures": 0,
            "health_due_at": None,
        }
    Agent.objects.filter(role=new.agent_id).update(**changes)
    new.refresh_from_db(fields=["deployed_at"])
    return new


def _copy(deployment: AgentVersionDeployment, actor: str, **more: Any) -> AgentVersionDeployment:
    return AgentVersionDeployment(
        agent_id=deployment.agent_id,
        version=deployment.version,
        environment=Environment.PRODUCTION,
        endpoint=deployment.endpoint,
        deployed_by=actor,
        **more,
    )


def _current() -> QuerySet[AgentVersionDeployment]:
    return AgentVersionDeployment.objects.filter(replaced_at__isnull=True)


_CONFLICT = (
    "Another version came into production at the same moment. Look at what is there now and decide again."
)


@contextmanager
def _translate_conflicts() -> Iterator[None]:
    """The unique constraint is the last word between two who find the same place empty."""
    try:
        yield
    except IntegrityError as error:
        raise DeploymentConflict(_CONFLICT) from error

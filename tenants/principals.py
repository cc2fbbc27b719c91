"""Who acts, for which tenant, and how far: the one answer that every kind of credential leads to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import UUID

from tenants.models import Role


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller of a request. It has exactly one tenant, and nothing in the request can change which."""

    tenant_id: UUID
    tenant: str  # the tenant's slug
    role: Role
    actor: str  # "token:<name>" or "user:<username>", as decisions and history record it
    human_roles: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()  # empty: everything that the role may do
    token_id: UUID | None = None
    user_id: int | None = None  # of a person who signed in
    person_id: int | None = None  # of the member who stands behind a token, if one does
    is_platform_admin: bool = False  # may change the registry that all tenants share
    break_glass_id: UUID | None = None  # through which a superuser who is no member acts

    is_authenticated: ClassVar[bool] = True
    is_active: ClassVar[bool] = True

    @property
    def credential(self) -> str:
        """What was presented: a token, or the session of a person. Unlike `actor`, nobody can choose it."""
        return f"token:{self.token_id}" if self.token_id else f"user:{self.user_id}"

    @property
    def identity(self) -> str:
        """Who asks and decides: the person, whatever they came with; a token that nobody stands behind is itself alone."""
        person = self.user_id or self.person_id
        return f"user:{person}" if person else self.credential

    def __str__(self) -> str:
        return self.actor


def caller_of(request: Any) -> Principal | None:
    """The principal that a request was authenticated as, or None."""
    caller = request.user
    return caller if isinstance(caller, Principal) else None

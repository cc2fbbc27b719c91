"""Who acts, for which tenant and with which rights: what every kind of credential is resolved to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import UUID

from tenants.exceptions import Forbidden
from tenants.models import Role


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller of a request. It has exactly one tenant, which nothing in the request can change."""

    tenant_id: UUID
    tenant: str  # the tenant's slug
    role: Role
    actor: str  # "token:<name>" or "user:<username>", as decisions and history record it
    human_roles: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()  # empty: everything that the role may do
    token_id: UUID | None = None
    user_id: int | None = None  # of a person who signed in
    person_id: int | None = None  # of the member to whom a token belongs, if any
    is_platform_admin: bool = False  # may change the registry that all tenants share
    break_glass_id: UUID | None = None  # through which a superuser who is no member acts

    is_authenticated: ClassVar[bool] = True
    is_active: ClassVar[bool] = True

    @property
    def credential(self) -> str:
        """Return the id of the token or of the person's account. Unlike the name in `actor`, nobody can choose it."""
        return f"token:{self.token_id}" if self.token_id else f"user:{self.user_id}"

    @property
    def identity(self) -> str:
        """Return who acts: the person, whatever credential they used; for a token that belongs to nobody, the token itself."""
        person = self.user_id or self.person_id
        return f"user:{person}" if person else self.credential

    def require_admin(self) -> None:
        """Raise `Forbidden`, with the reason, unless the role includes that of admins."""
        if not self.role.includes(Role.ADMIN):
            raise Forbidden(f"This needs the role admin; you act as {self.role.value}.")

    def __str__(self) -> str:
        return self.actor


def caller_of(request: Any) -> Principal | None:
    """Return the principal that a request was authenticated as, or None."""
    caller = request.user
    return caller if isinstance(caller, Principal) else None

"""Where a request comes from, as its entries say: its id, its address, and the broken glass that it sees through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from typing import Any
from uuid import UUID

from django.conf import settings
from django.http import HttpRequest


@dataclass(frozen=True, slots=True)
class Origin:
    request_id: str = ""
    ip: str = ""
    glass: Mapping[UUID | None, UUID] = field(default_factory=dict)  # by tenant; None for all of them

    def glass_of(self, tenant_id: UUID | None) -> UUID | None:
        """Through which broken glass the tenant is seen, if it is."""
        return self.glass.get(tenant_id, self.glass.get(None)) if self.glass else None


NOWHERE = Origin()
_origin: ContextVar[Origin] = ContextVar("audit_origin", default=NOWHERE)


def current() -> Origin:
    return _origin.get()


@contextmanager
def of_request(request: HttpRequest, request_id: str) -> Iterator[None]:
    token = _origin.set(Origin(request_id, address_of(request)))
    try:
        yield
    finally:
        _origin.reset(token)


@contextmanager
def through_glass(glass: Mapping[Any, UUID]) -> Iterator[None]:
    """By tenant, or by None for all of them."""
    token = _origin.set(replace(_origin.get(), glass=glass))
    try:
        yield
    finally:
        _origin.reset(token)


def address_of(request: HttpRequest) -> str:
    """The caller's address: the peer's, or what the last of our own proxies saw. What callers claim beyond that is not believed."""
    hops = settings.ORCHESTRATOR_PROXY_HOPS
    claimed = request.META.get("REMOTE_ADDR", "")
    if hops > 0:
        seen = [
            part.strip() for part in request.headers.get("X-Forwarded-For", "").split(",") if part.strip()
        ]
        claimed = seen[-hops] if len(seen) >= hops else claimed
    try:
        return str(ip_address(claimed))
    except ValueError:
        return ""  # a socket without addresses, or nonsense

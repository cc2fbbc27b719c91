"""The operators' settings for outbound calls, and the judgement of a URL by them.

`ORCHESTRATOR_EGRESS_ALLOW` names exact `host:port` places that are exempt from the rules, for agents inside
the own network. One that is written `agents=host:port` is exempt for that purpose alone, and an address that a
tenant enters for another one does not get there. `ORCHESTRATOR_EGRESS_DENY` names addresses and networks of
this installation, for those that are public. On a developer's machine `ORCHESTRATOR_EGRESS_LOOPBACK_EXCEPT`
opens every port of loopback but those of our own servers; unset, as everywhere else, it opens none.
`ORCHESTRATOR_EGRESS_CA_FILE` names further certificate authorities to trust. Settings are read at each call.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_network

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from agents.exceptions import OutboundRefused
from agents.outbound import addresses, urls

#: Those of the web. Databases, mail servers and remote shells listen elsewhere.
PORTS = frozenset({80, 443, 8080, 8443})

#: What calls are made for. Model providers are agents.
AGENTS, WEBHOOKS, DATA_SOURCES, NOTIFICATIONS = PURPOSES = (
    "agents",
    "webhooks",
    "data-sources",
    "notifications",
)

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_METADATA_NAMES = frozenset(
    {"metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal"}
)


@dataclass(frozen=True, slots=True)
class Policy:
    """What may be called, in a form that is quick to ask."""

    allowed: frozenset[tuple[str, int]]
    denied: tuple[addresses.Network, ...]
    ca_file: str | None
    loopback_except: frozenset[int] | None = None

    def judge(self, target: urls.Target) -> None:
        """Refuse what can be refused without asking the name service. A name's addresses are judged later."""
        exempt = self.exempts(target.host, target.port)
        if target.host in _METADATA_NAMES:
            raise OutboundRefused(f"{target.host} is a metadata service.")
        if not exempt:
            if target.scheme != "https":
                raise OutboundRefused("Only https:// may be called.")
            if target.port not in PORTS:
                raise OutboundRefused(f"The port {target.port} may not be called.")
            if target.host == "localhost" or target.host.endswith(".localhost"):
                raise OutboundRefused("localhost is not a public host.")
        if target.address is not None:
            self.judge_address(target.address, exempt=exempt)

    def judge_address(self, address: addresses.Address, *, exempt: bool) -> None:
        """Refuse an address that must not be connected to."""
        if reason := addresses.refusal(address, exempt=exempt, denied=self.denied):
            raise OutboundRefused(f"{reason}.")

    def exempts(self, host: str, port: int) -> bool:
        """Whether the operators named this place, or opened loopback on a developer's machine."""
        if (host, port) in self.allowed:
            return True
        return self.loopback_except is not None and host in _LOOPBACK and port not in self.loopback_except


def current(purpose: str = AGENTS) -> Policy:
    """The policy of the settings in force; the same object as long as they do not change, for all purposes that are allowed the same."""
    ca_file = getattr(settings, "ORCHESTRATOR_EGRESS_CA_FILE", None)
    return _policy_of(
        _places_for(purpose, tuple(getattr(settings, "ORCHESTRATOR_EGRESS_ALLOW", ()))),
        tuple(map(str, getattr(settings, "ORCHESTRATOR_EGRESS_DENY", ()))),
        str(ca_file) if ca_file else None,
        getattr(settings, "ORCHESTRATOR_EGRESS_LOOPBACK_EXCEPT", None),
    )


@lru_cache(maxsize=32)
def _places_for(purpose: str, entries: tuple[str, ...]) -> tuple[str, ...]:
    places = []
    for entry in entries:
        named, bound, place = entry.rpartition("=")
        if bound and named.strip() not in PURPOSES:
            raise ImproperlyConfigured(
                f"ORCHESTRATOR_EGRESS_ALLOW has an entry for {named!r}, which is none of {', '.join(PURPOSES)}."
            )
        if not bound or named.strip() == purpose:
            places.append(place.strip())
    return tuple(places)


@lru_cache(maxsize=32)
def _policy_of(
    allow: tuple[str, ...], deny: tuple[str, ...], ca_file: str | None, loopback_except: frozenset[int] | None
) -> Policy:
    try:
        allowed = frozenset(urls.read_place(entry) for entry in allow)
    except OutboundRefused as error:
        raise ImproperlyConfigured(
            f"ORCHESTRATOR_EGRESS_ALLOW has an entry that is not host:port. {error}"
        ) from error
    try:
        denied = tuple(ip_network(entry, strict=False) for entry in deny)
    except ValueError as error:
        raise ImproperlyConfigured(f"ORCHESTRATOR_EGRESS_DENY: {error}") from error
    return Policy(allowed, denied, ca_file, loopback_except)

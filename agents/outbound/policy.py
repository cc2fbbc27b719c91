"""The operators' settings for outbound calls, and the judgement of a URL by them.

`ORCHESTRATOR_EGRESS_ALLOW` names exact `host:port` places that are exempt from the rules, for agents inside
the own network. One that is written `agents=host:port` is exempt for that purpose alone, and an address that a
tenant enters for another one does not get there. `ORCHESTRATOR_EGRESS_DENY` names addresses and networks of
this installation, for those that are public. On a developer's machine `ORCHESTRATOR_EGRESS_LOOPBACK_EXCEPT`
opens every port of loopback but those of our own servers; unset, as everywhere else, it opens none.
`ORCHESTRATOR_EGRESS_CA_FILE` names further certificate authorities to trust. Settings are read at each call.

Of IP addresses the public ones may be called, and nothing that only looks public. This is an allow rule, because the list of what must not
be called never ends: an address passes when it is global unicast and in none of the special ranges. Python's `is_global` alone is not
enough; it lets multicast, NAT64 and 6to4 through.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from agents.exceptions import OutboundRefused
from agents.outbound import urls
from agents.outbound.urls import Address

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
    denied: tuple[Network, ...]
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

    def judge_address(self, address: Address, *, exempt: bool) -> None:
        """Refuse an address that must not be connected to."""
        if reason := refusal(address, exempt=exempt, denied=self.denied):
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


Network = IPv4Network | IPv6Network

_GLOBAL_UNICAST_6 = IPv6Network("2000::/3")

_SPECIAL_4 = tuple(
    IPv4Network(network)
    for network in (
        "100.64.0.0/10",  # carriers' shared addresses
        "192.0.0.0/24",  # protocol assignments
        "192.31.196.0/24",  # AS112, answered by the nearest server
        "192.52.193.0/24",  # automatic multicast tunnels
        "192.88.99.0/24",  # 6to4 relays
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_SPECIAL_6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, among them Teredo, which carries an IPv4 address
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which carries an IPv4 address
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)

#: Services that hand out a machine's credentials to every program on it. One of them has a public number.
METADATA_ADDRESSES = frozenset[Address](
    {
        IPv4Address("168.63.129.16"),
        IPv4Address("169.254.169.254"),
        IPv4Address("169.254.170.2"),
        IPv4Address("100.100.100.200"),
        IPv6Address("fd00:ec2::254"),
        IPv6Address("fd20:ce::254"),
    }
)


def refusal(address: Address, *, exempt: bool = False, denied: Iterable[Network] = ()) -> str | None:
    """Why this address may not be called, or None. An `exempt` one was named by the operators in the
    allow-list.

    The operators' word outweighs the rules and the deny-list, but never opens a metadata service.
    """
    address = unmap(address)
    if address in METADATA_ADDRESSES:
        return f"{address} is a metadata service"
    if exempt:
        return None
    if any(address in network for network in denied):
        return f"{address} belongs to this installation"
    if not is_public(address):
        return f"{address} is not a public address"
    return None


def is_public(address: Address) -> bool:
    """Whether the address is global unicast and in no special range."""
    address = unmap(address)
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in network for network in _SPECIAL_4)
    return address in _GLOBAL_UNICAST_6 and not any(address in network for network in _SPECIAL_6)


def unmap(address: Address) -> Address:
    """The IPv4 address inside `::ffff:a.b.c.d`, which the kernel would connect to, or the address itself."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address

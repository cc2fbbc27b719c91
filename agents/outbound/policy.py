"""The operators' settings for outbound calls, and the check of URLs and addresses by them.

`ORCHESTRATOR_EGRESS_ALLOW` lists exact `host:port` places that are exempt from the rules, for agents inside
the installation's network. An entry `agents=host:port` is exempt only for that purpose; addresses that a
tenant enters for other purposes cannot reach it. `ORCHESTRATOR_EGRESS_DENY` lists public addresses and networks
that belong to this installation. On a developer's machine `ORCHESTRATOR_EGRESS_LOOPBACK_EXCEPT`
opens every port of loopback except those of our own servers; if it is unset, no port is open.
`ORCHESTRATOR_EGRESS_CA_FILE` names further certificate authorities to trust. Settings are read at each call.

Only public IP addresses may be called. This is an allow rule, because a list of forbidden addresses would never be complete: an address
passes when it is global unicast and in none of the special ranges. Python's `is_global` alone is not enough, because it allows multicast,
NAT64 and 6to4.
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

#: The ports of the web. Databases, mail servers and remote shells use others.
PORTS = frozenset({80, 443, 8080, 8443})

#: The purposes of calls. Model providers count as agents.
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
    """The addresses that may be called, in a form that is quick to check."""

    allowed: frozenset[tuple[str, int]]
    denied: tuple[Network, ...]
    ca_file: str | None
    loopback_except: frozenset[int] | None = None

    def check(self, target: urls.Target) -> None:
        """Raise `OutboundRefused` if the target is forbidden, without resolving names. `check_address` checks a name's addresses."""
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
            self.check_address(target.address, exempt=exempt)

    def check_address(self, address: Address, *, exempt: bool) -> None:
        """Raise `OutboundRefused` for a forbidden address."""
        if reason := refusal(address, exempt=exempt, denied=self.denied):
            raise OutboundRefused(f"{reason}.")

    def exempts(self, host: str, port: int) -> bool:
        """Whether the operators have allowed this place, or opened loopback on a developer's machine."""
        if (host, port) in self.allowed:
            return True
        return self.loopback_except is not None and host in _LOOPBACK and port not in self.loopback_except


def current(purpose: str = AGENTS) -> Policy:
    """Return the current policy. It is the same object while the settings are the same, for all purposes with the same exemptions."""
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
        entry_purpose, equals, place = entry.rpartition("=")
        if equals and entry_purpose.strip() not in PURPOSES:
            raise ImproperlyConfigured(
                f"ORCHESTRATOR_EGRESS_ALLOW has an entry for {entry_purpose!r}, which is none of {', '.join(PURPOSES)}."
            )
        if not equals or entry_purpose.strip() == purpose:
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

#: Services that give a machine's credentials to every program on it. One of them has a public address.
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
    """Return why this address may not be called, or None. The operators' allow-list names `exempt` addresses.

    An exemption overrides the rules and the deny-list, but never allows a metadata service.
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
    """Return the IPv4 address inside `::ffff:a.b.c.d`, which the kernel would connect to, or the address itself."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address

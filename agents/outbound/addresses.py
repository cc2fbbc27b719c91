"""Which IP addresses may be called: the public ones, and nothing that only looks public.

An allow rule, because the list of what must not be called never ends: an address passes when it is global
unicast and in none of the special ranges. Python's `is_global` alone is not enough; it lets multicast, NAT64
and 6to4 through.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_GLOBAL_UNICAST_6 = IPv6Network("2000::/3")

_SPECIAL_4 = tuple(
    IPv4Network(network)
    for network in (
        "100.64.0.0/10",  # carriers' shared addresses
        "192.0.0.0/24",  # protocol assignments
        "192.31.196.0/24",  # AS112, answered by whoever is nearest
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

#: Services that hand out a machine's credentials to whoever asks from it. One of them has a public number.
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
    address = unmapped(address)
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
    address = unmapped(address)
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in network for network in _SPECIAL_4)
    return address in _GLOBAL_UNICAST_6 and not any(address in network for network in _SPECIAL_6)


def unmapped(address: Address) -> Address:
    """The IPv4 address inside `::ffff:a.b.c.d`, which the kernel would connect to, or the address itself."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address

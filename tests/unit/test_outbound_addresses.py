"""Which addresses and URLs may be called. Nothing here opens a connection."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from hypothesis import given
from hypothesis import strategies as st

from agents.exceptions import OutboundRefused
from agents.outbound import check_url, policy

#: IANA's registries of special-purpose addresses, all rows, and multicast.
REGISTRY = """
    0.0.0.0/8 0.0.0.0/32 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24
    192.0.0.0/29 192.0.0.8/32 192.0.0.9/32 192.0.0.10/32 192.0.0.170/32 192.0.0.171/32 192.0.2.0/24
    192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 198.18.0.0/15
    198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 255.255.255.255/32
    ::1/128 ::/128 64:ff9b::/96 64:ff9b:1::/48 100::/64 100:0:0:1::/64 2001::/23 2001::/32 2001:1::1/128
    2001:1::2/128 2001:1::3/128 2001:2::/48 2001:3::/32 2001:4:112::/48 2001:10::/28 2001:20::/28
    2001:30::/28 2001:db8::/32 2002::/16 2620:4f:8000::/48 3fff::/20 5f00::/16 fc00::/7 fe80::/10
    fec0::/10 ff00::/8
"""
SPECIAL = tuple(map(ip_network, REGISTRY.split()))

FORBIDDEN_HOSTS = [
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "0",
    "0.0.0.0",
    "0x7f.1",
    "0x7f000001",
    "0X7F.0.0.1",
    "1.0x",
    "2130706433",
    "017700000001",
    "0177.0.0.1",
    "127.0.0.01",
    "127.0.0.1.",
    "127.000.000.001",
    "256.256.256.256",
    "\uff11\uff12\uff17.\uff10.\uff10.\uff11",
    "①②⑦.⓪.⓪.①",
    "127。0。0。1",
    "localhost",
    "LOCALHOST",
    "localhost.",
    "agent.localhost",
    "ⓛocalhost",
    "[::1]",
    "[::]",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b::a9fe:a9fe]",
    "[2002:7f00:1::]",
    "[2001:0:7f00:1::]",
    "[fe80::1%25eth0]",
    "[fe80::1%eth0]",
    "[2606:4700:4700::1111%eth0]",
    "[fe80::1]",
    "[fec0::1]",
    "[fd00::1]",
    "[fd00:ec2::254]",
    "[ff02::1]",
    "[::1",
    "::1",
    "[127.0.0.1]",
    "169.254.169.254",
    "2852039166",
    "169.254.170.2",
    "100.100.100.200",
    "168.63.129.16",
    "[::ffff:168.63.129.16]",
    "metadata.google.internal",
    "METADATA.google.internal",
    "metadata",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "100.64.0.1",
    "192.0.0.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.19.255.255",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "good.example.",
    "good..example",
    ".good.example",
    "-good.example",
    "good example",
    "127%2e0%2e0%2e1",
    "good.example%00.evil.example",
    "a" * 64 + ".example",
    ".".join(["a" * 60] * 5),
    "",
    "*",
    "\u212aube.example",
]

FORBIDDEN_URLS = [
    "",
    "good.example",
    "//good.example/",
    "https:good.example",
    "https:/good.example",
    "http://good.example/",
    "HTTP://good.example/",
    "file:///etc/passwd",
    "gopher://good.example/",
    "ftp://good.example/",
    "ws://good.example/",
    "javascript://good.example/%0aalert(1)",
    "https://user:password@good.example/",
    "https://user@good.example/",
    "https://@good.example/",
    "https://good.example@127.0.0.1/",
    "https://127.0.0.1#@good.example/",
    "https://good.example#@127.0.0.1/",
    "https://good.example/#part",
    "https://good.example\\@127.0.0.1/",
    "https://127.0.0.1\\@good.example/",
    "https:\\\\good.example/",
    "https://good.example/\r\nHost: evil.example",
    "https://good.example/a b",
    "https://good.example\t/",
    " https://good.example/",
    "https://good.example/\x00",
    "https://good.example/\x7f",
    "https://good.example/ü",
    "https://good.example:22/",
    "https://good.example:25/",
    "https://good.example:5432/",
    "https://good.example:6379/",
    "https://good.example:27017/",
    "https://good.example:0/",
    "https://good.example:65979/",
    "https://good.example:/",
    "https://good.example:+443/",
    "https://good.example:\uff14\uff14\uff13/",
    "https://good.example:443:443/",
    "https://[2606:4700:4700::1111]443/",
    "https://good.example/" + "a" * 2_000,
]

GOOD_URLS = [
    "https://good.example",
    "https://good.example/",
    "HTTPS://GOOD.example:443/run?x=@y",
    "https://good.example?x=1",
    "https://good.example:8443/a/b%20c;d=[1]",
    "https://good.example:8080/@me",
    "https://8.8.8.8/",
    "https://[2606:4700:4700::1111]:8443/",
    "https://[::ffff:8.8.8.8]/",
    "https://bücher.example/",
    "https://xn--bcher-kva.example/",
    "https://my_agent.good.example/",
]

PUBLIC = ["93.184.216.34", "2606:4700:4700::1111"]


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch, settings: Any) -> dict[str, list[str]]:
    """A name service that the test controls. By default the good names have public addresses."""
    settings.ORCHESTRATOR_EGRESS_ALLOW = ()
    settings.ORCHESTRATOR_EGRESS_DENY = ()
    good = ["good.example", "xn--bcher-kva.example", "my_agent.good.example"]
    table = dict.fromkeys(good, PUBLIC)

    def getaddrinfo(host: str, *arguments: Any, **options: Any) -> list[Any]:
        if host not in table:
            raise socket.gaierror(-2, "Name or service not known")
        return [(2, 1, 6, "", (address, 0)) for address in table[host]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return table


def is_refused(url: str) -> bool:
    try:
        check_url(url)
    except OutboundRefused:
        return True
    return False


@given(
    st.ip_addresses()
    | st.sampled_from([address for network in SPECIAL for address in (network[0], network[-1])])
)
def test_an_accepted_address_is_in_no_special_range(address: IPv4Address | IPv6Address) -> None:
    if policy.is_public(address):
        plain = policy.unmap(address)

        assert not any(plain in network for network in SPECIAL)


@given(st.sampled_from(SPECIAL).flatmap(lambda network: st.ip_addresses(network=network)))
def test_no_address_of_a_special_range_is_accepted(address: IPv4Address | IPv6Address) -> None:
    assert not policy.is_public(address)


@given(st.ip_addresses(v=4).filter(lambda address: not policy.is_public(address)))
def test_no_spelling_of_a_forbidden_address_is_accepted(address: IPv4Address) -> None:
    number, parts = int(address), str(address).split(".")
    spellings = [
        str(address),
        str(number),
        hex(number),
        f"0{number:o}",
        ".".join(hex(int(part)) for part in parts),
        ".".join(f"0{int(part):o}" for part in parts),
        f"{parts[0]}.{number & 0xFFFFFF}",
        f"{parts[0]}.{parts[1]}.{number & 0xFFFF}",
        f"[::ffff:{address}]",
        f"[::{address}]",
        f"[64:ff9b::{address}]",
        f"[2002:{number >> 16:x}:{number & 0xFFFF:x}::]",
        str(address).translate({48 + digit: 0xFF10 + digit for digit in range(10)}),
        f"{address}.",
    ]

    assert all(is_refused(f"https://{spelling}/") for spelling in spellings)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700:4700::1111", "2a00:1450::1"]
)
def test_public_addresses_are_accepted(address: str) -> None:
    assert policy.is_public(ip_address(address))


@pytest.mark.parametrize("host", FORBIDDEN_HOSTS)
def test_a_url_with_a_forbidden_host_is_refused(host: str, names: dict[str, list[str]]) -> None:
    # Even if the name service has a public address for such a host.
    names[host.lower()] = PUBLIC

    assert is_refused(f"https://{host}/")
    assert is_refused(f"https://{host}:8443/run")


@pytest.mark.parametrize("url", FORBIDDEN_URLS)
def test_a_url_of_a_forbidden_form_is_refused(url: str) -> None:
    assert is_refused(url)


@pytest.mark.parametrize("url", GOOD_URLS)
def test_ordinary_urls_are_accepted(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["::1"],
        ["10.1.2.3"],
        ["fe80::1%eth0"],
        ["8.8.8.8", "127.0.0.1"],
        ["8.8.8.8", "::ffff:10.0.0.1"],
    ],
)
def test_a_name_with_any_forbidden_address_is_refused(
    addresses: list[str], names: dict[str, list[str]]
) -> None:
    names["rebind.example"] = addresses

    assert is_refused("https://rebind.example/")


def test_a_name_that_cannot_be_resolved_is_refused() -> None:
    assert is_refused("https://unknown.example/")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://user:password@good.example/", "user name"),
        ("https://good.example:22/", "port 22"),
        ("http://good.example/", "https"),
        ("https://127.1/", "four plain decimal numbers"),
        ("https://10.0.0.1/", "10.0.0.1 is not a public address"),
        ("https://168.63.129.16/", "metadata"),
    ],
)
def test_a_refusal_says_why(url: str, reason: str) -> None:
    with pytest.raises(OutboundRefused, match=reason):
        check_url(url)


def test_an_allowed_host_may_be_called_by_http_on_any_port_without_a_name_lookup(
    settings: Any,
) -> None:
    settings.ORCHESTRATOR_EGRESS_ALLOW = ("127.0.0.1:9000", "Agents.internal:9001", "[::1]:9002")

    for url in ("http://127.0.0.1:9000/", "https://agents.internal:9001/x", "http://[0::1]:9002/"):
        check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9001/",
        "http://127.0.0.2:9000/",
        "http://localhost:9000/",
        "http://127.1:9000/",
        "http://[::ffff:127.0.0.1]:9000/",
        "http://127.0.0.1:9000@evil.example/",
    ],
)
def test_an_allowed_host_allows_no_other_host(url: str, settings: Any) -> None:
    settings.ORCHESTRATOR_EGRESS_ALLOW = ("127.0.0.1:9000",)

    assert is_refused(url)


def test_metadata_services_stay_closed_even_when_allowed(settings: Any) -> None:
    settings.ORCHESTRATOR_EGRESS_ALLOW = (
        "169.254.169.254:80",
        "metadata.google.internal:80",
        "168.63.129.16:80",
    )

    assert is_refused("http://169.254.169.254:80/")
    assert is_refused("http://metadata.google.internal/")
    assert is_refused("http://168.63.129.16/")


def test_addresses_of_the_installation_are_refused_unless_allowed(
    settings: Any, names: dict[str, list[str]]
) -> None:
    settings.ORCHESTRATOR_EGRESS_DENY = ("93.184.216.0/24", "8.8.8.8")

    assert is_refused("https://good.example/")
    assert is_refused("https://8.8.8.8/")
    assert is_refused("https://[::ffff:8.8.8.8]/")
    check_url("https://8.8.4.4/")
    settings.ORCHESTRATOR_EGRESS_ALLOW = ("8.8.8.8:443",)
    check_url("https://8.8.8.8/")


@pytest.mark.parametrize(
    "entry", ["127.0.0.1", "127.0.0.1:*", "*:80", "http://127.0.0.1:80", "127.1:80", "::1:80", ""]
)
def test_an_allow_entry_that_is_not_an_exact_host_is_reported(entry: str, settings: Any) -> None:
    settings.ORCHESTRATOR_EGRESS_ALLOW = (entry,)

    with pytest.raises(ImproperlyConfigured):
        policy.current()


def test_a_deny_entry_that_is_not_a_network_is_reported(settings: Any) -> None:
    settings.ORCHESTRATOR_EGRESS_DENY = ("database.internal",)

    with pytest.raises(ImproperlyConfigured):
        policy.current()

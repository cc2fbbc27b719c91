"""Parses URLs strictly, so that the checked address is the one that is called.

It refuses everything that another parser might read differently: numbers that represent an IPv4 address, characters
that normalise to digits or dots, backslashes, user names, fragments, line breaks, trailing dots.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import TYPE_CHECKING

import idna

from agents.exceptions import OutboundRefused
from tenants.lazy_import import lazy_import

if TYPE_CHECKING:
    import httpx2
else:
    httpx2 = lazy_import("httpx2")

Address = IPv4Address | IPv6Address

DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_LENGTH = 2_000
MAX_HOST_LENGTH = 253  # the limit of the domain name system

_FORBIDDEN = re.compile(r"[\x00-\x20\x7f\\]")
_CAPITALS = re.compile(r"[A-Z]+")
_PORT = re.compile(r":[0-9]{1,5}")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
#: A last label of this form makes resolvers read the whole host as a number.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


@dataclass(frozen=True, slots=True)
class Target:
    """A URL in its normal form. `address` is set when the host is an IP address and not a name."""

    scheme: str
    host: str
    port: int
    address: Address | None
    url: httpx2.URL

    @property
    def place(self) -> str:
        """Host and port, for messages, because the rest of a URL may contain secrets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@lru_cache(maxsize=1024)
def read(url: str) -> Target:
    """Parse a URL, or raise `OutboundRefused` with the reason."""
    if len(url) > MAX_LENGTH:
        raise OutboundRefused(f"The URL is longer than {MAX_LENGTH} characters.")
    if _FORBIDDEN.search(url):
        raise OutboundRefused("The URL contains a space, a control character or a backslash.")
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in DEFAULT_PORTS:
        raise OutboundRefused("The URL must start with https://.")
    if "#" in rest:
        raise OutboundRefused("The URL must not have a fragment.")
    end = next((position for position, character in enumerate(rest) if character in "/?"), len(rest))
    authority, path = rest[:end], rest[end:]
    if not path.isascii():
        raise OutboundRefused("The URL's path must be ASCII; write other characters percent-encoded.")
    host, port = read_place(authority, DEFAULT_PORTS[scheme])
    return _target(scheme, host, port, path)


def read_place(text: str, default_port: int | None = None) -> tuple[str, int]:
    """Parse `host:port` into its normal form, or raise `OutboundRefused`. Without a default, the port is required."""
    if "@" in text:
        raise OutboundRefused("The URL must not contain a user name or password.")
    if text.startswith("["):
        host, bracket, port_text = text[1:].partition("]")
        if not bracket:
            raise OutboundRefused("The host's bracket is not closed.")
        host = _normal_address_6(host)
    else:
        host, colon, port_text = text.partition(":")
        host, port_text = _normal_host(host), colon + port_text
    if not port_text and default_port is not None:
        return host, default_port
    if not _PORT.fullmatch(port_text) or not 0 < int(port_text[1:]) < 65536:
        raise OutboundRefused("The port is missing or not a number from 1 to 65535.")
    return host, int(port_text[1:])


def _normal_address_6(text: str) -> str:
    if "%" in text:
        raise OutboundRefused("An address must not name a network interface.")
    try:
        return str(IPv6Address(text))
    except AddressValueError as error:
        raise OutboundRefused("The host is not an IPv6 address.") from error


def _normal_host(text: str) -> str:
    # Only A to Z, because lower() would also convert others, such as the Kelvin sign, into plain letters.
    host = _CAPITALS.sub(lambda match: match[0].lower(), text)
    if not host.isascii():
        try:
            # Without the usual mapping step, because full-width and circled digits must not become plain ones.
            host = idna.encode(host, strict=True, uts46=False, std3_rules=True).decode()
        except (idna.IDNAError, UnicodeError) as error:
            raise OutboundRefused("The host is not a valid international domain name.") from error
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return str(IPv4Address(host))
        except AddressValueError as error:
            raise OutboundRefused("An IPv4 address must be written as four plain decimal numbers.") from error
    if len(host) > MAX_HOST_LENGTH or not all(_LABEL.fullmatch(label) for label in labels):
        raise OutboundRefused("The host is not a domain name.")
    return host


def _target(scheme: str, host: str, port: int, path: str) -> Target:
    bracketed = f"[{host}]" if ":" in host else host
    try:
        url = httpx2.URL(f"{scheme}://{bracketed}:{port}{path}")
    except httpx2.InvalidURL as error:
        raise OutboundRefused("The URL is malformed.") from error
    # The client parses the URL again. Refuse the URL unless both parsers see the same host.
    if url.raw_host != host.encode() or (url.port or DEFAULT_PORTS[scheme]) != port or url.userinfo:
        raise OutboundRefused("The URL can be read in more than one way.")
    return Target(scheme, host, port, _address_of(host), url)


def _address_of(host: str) -> Address | None:
    if ":" in host:
        return IPv6Address(host)
    try:
        return IPv4Address(host)
    except AddressValueError:
        return None

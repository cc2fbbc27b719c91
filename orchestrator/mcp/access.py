"""Where to ask, and as whom: read from the environment, or put together from what a request brings.

ORCHESTRATOR_CALLBACK_URL, ORCHESTRATOR_CALLBACK_TOKEN    of a run, as command-line agents find them in their environment
ORCHESTRATOR_URL, ORCHESTRATOR_TOKEN                      of a person or a program; a callback URL makes them those of a run
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit
from uuid import UUID

URL, TOKEN = "ORCHESTRATOR_URL", "ORCHESTRATOR_TOKEN"
CALLBACK_URL, CALLBACK_TOKEN = "ORCHESTRATOR_CALLBACK_URL", "ORCHESTRATOR_CALLBACK_TOKEN"

API = "/api/v1/"
_CALLBACK = re.compile(r"(?P<site>.*)/api/v1/agent-runs/(?P<run>[0-9a-fA-F-]{36})/?")
# What a header may hold: a token with anything else is none of ours, and must not become a second header.
_TOKEN = re.compile(r"[\x21-\x7e]{1,8192}")


class Unusable(ValueError):
    """The environment or a request does not say whom to ask, or as whom. The text names what is missing, and no secret."""


@dataclass(frozen=True, slots=True)
class Access:
    """`root` ends with a slash: the API's address, or that of the callbacks of the one run that the token is for."""

    root: str
    token: str = field(repr=False)
    of_run: bool = False


def from_environment(environment: Mapping[str, str]) -> Access:
    """Raises `Unusable`. Where there are both, a run's token goes first: it opens less."""
    if environment.get(CALLBACK_URL) and environment.get(CALLBACK_TOKEN):
        address, token, name = environment[CALLBACK_URL], environment[CALLBACK_TOKEN], CALLBACK_TOKEN
        if not _CALLBACK.fullmatch(_plain(address, CALLBACK_URL)):
            raise Unusable(
                f"{CALLBACK_URL} is not the callback URL of a run, such as https://host/api/v1/agent-runs/<run id>/."
            )
    else:
        address, token, name = environment.get(URL, ""), environment.get(TOKEN, ""), TOKEN
        missing = [needed for needed, value in ((URL, address), (TOKEN, token)) if not value]
        if missing:
            raise Unusable(
                f"{' and '.join(missing)} must be set: the address of the orchestrator, such as https://host, "
                f"and a personal token. For an agent, {CALLBACK_URL} and {CALLBACK_TOKEN} of its run."
            )
    if not _TOKEN.fullmatch(token):
        raise Unusable(f"{name} holds characters that no token has.")
    found = _CALLBACK.fullmatch(_plain(address, URL))
    if found:
        return of_run(found["site"], found["run"], token)
    return of_person(site_of(address), token)


def site_of(address: str) -> str:
    """The orchestrator's address without the path of the API. Raises `Unusable`."""
    plain = _plain(address, URL).rstrip("/")
    if _CALLBACK.fullmatch(plain):
        raise Unusable(
            f"{URL} is the callback URL of one run. A server for many needs the orchestrator's address."
        )
    return plain.removesuffix(API.rstrip("/"))


def of_person(site: str, token: str) -> Access:
    """Raises `Unusable` for what cannot be a token."""
    return Access(f"{site}{API}", _checked(token))


def of_run(site: str, run_id: str, token: str) -> Access:
    """Raises `Unusable` for what cannot be a token or the id of a run."""
    try:
        run = UUID(run_id)
    except ValueError as error:
        raise Unusable("The id of a run is a UUID.") from error
    return Access(f"{site}{API}agent-runs/{run}/", _checked(token), of_run=True)


def _checked(token: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise Unusable("The token holds characters that no token has.")
    return token


def _plain(address: str, name: str) -> str:
    """The address, if it is one to which a token may be sent. Raises `Unusable`."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as error:
        raise Unusable(f"{name} is not an address.") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise Unusable(f"{name} must be an address that begins with https:// or http://.")
    if parts.username is not None or parts.query or parts.fragment or not address.isprintable():
        raise Unusable(f"{name} must be an address without a user, a query and a fragment.")
    return address

"""Lock-out: whoever guesses passwords or tokens has to wait, whether what they guess at exists or not.

Every attempt takes one unit from the bucket of its account and from that of its address before anything is looked up, so attempts at
the same moment count as well; only a success gives them back. Buckets are in Redis and shared by all processes; without Redis each
process has its own.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from django.conf import settings

from tenants.identifiers import uuid7
from tenants.limiter import Bucket, fallback

PATIENCE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Attempt:
    """Whether it may be made; if not, in how many seconds the next one may."""

    allowed: bool
    retry_after: int = 0
    kind: str = ""
    address: str = ""
    account: str = ""
    take_id: str = ""

    def succeeded(self) -> None:
        """The account's failures are forgotten. Those of the address are not, or guessing at others would be free for who has an account;
        but this was none of them."""
        fallback.refill(_of_account(self.kind, self.account))
        fallback.give_back(_of_address(self.kind, self.address), self.take_id)


def attempt(kind: str, address: str, account: str) -> Attempt:
    """Count an attempt at a kind of door as a failure, until it is said to have been a success."""
    take_id = str(uuid7())
    for bucket in (_of_address(kind, address), _of_account(kind, account)):
        said = fallback.take(bucket, take_id)
        if not said.allowed:
            return Attempt(False, max(1, math.ceil(said.retry_after)))
    return Attempt(True, 0, kind, address, account, take_id)


def _of_address(kind: str, address: str) -> Bucket:
    return _bucket(f"{kind}:address:{address or 'unknown'}", settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ADDRESS)


def _of_account(kind: str, account: str) -> Bucket:
    # Names are whatever somebody typed: of any length, and not to be read in Redis.
    name = hashlib.sha256(account.strip().lower().encode("utf-8", "replace")).hexdigest()[:32]
    return _bucket(f"{kind}:account:{name}", settings.ORCHESTRATOR_LOGIN_FAILURES_PER_ACCOUNT)


def _bucket(name: str, failures: int) -> Bucket:
    rate = 1.0 / settings.ORCHESTRATOR_LOGIN_FORGIVEN_SECONDS
    return Bucket(f"lockout:{name}", rate, float(failures), PATIENCE_SECONDS)

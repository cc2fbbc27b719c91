"""Rate limits that hold over all processes, and what to do while they cannot be asked."""

from tenants.limiter.limiter import Bucket, Decision

from .limiter import Breaker
from .places import Places

__all__ = ("Breaker", "Bucket", "Decision", "Places")

"""Rate limits that hold over all processes, and what to do while they cannot be asked."""

from tenants.limiter.breaker import Breaker
from tenants.limiter.limiter import Bucket, Decision

__all__ = ("Breaker", "Bucket", "Decision")

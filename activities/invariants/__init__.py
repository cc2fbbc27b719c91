"""Invariants: what must hold at every moment, checked against the whole database in one snapshot.

The check changes nothing. Everything it reads from PostgreSQL comes from one read-only transaction, so work that goes on meanwhile
cannot look like a fault. What needs a server that is away is reported as not checked, never as fine. The liveness checks, which
say that work gets on, hold about a minute after the last fault; ask for them with `quiesced`.
"""

from activities.invariants.examination import check, examine
from activities.invariants.memory import last_known, remember, tenants_concerned
from activities.invariants.report import LIVENESS, SAFETY, Report, Violation

__all__ = (
    "LIVENESS",
    "SAFETY",
    "Report",
    "Violation",
    "check",
    "examine",
    "last_known",
    "remember",
    "tenants_concerned",
)

"""Admission: decides which ready activity may go to a worker now.

An activity is published only while it holds slots in every scope that limits it: group, tenant and role, tenant, role, all,
and a seat at a worker. One script decides for all scopes in one step. Redis holds no truth: everything here can be rebuilt
from PostgreSQL, and while it is not built (a wiped Redis) nothing is granted at all.

Who runs next is one order, in `lua/library.lua`: band, virtual time of the tenant, score. What limits are in force is in `limits`.
"""

from activities.admission.exchange import CLAIM_SECONDS, Exchange, Grant, exchange
from activities.admission.scripts import Closed, PassedSlot, accept, audit, inspect, start

__all__ = (
    "CLAIM_SECONDS", "Closed", "Exchange", "Grant", "PassedSlot", "accept", "audit", "exchange", "inspect", "start",
)  # fmt: skip

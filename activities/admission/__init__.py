"""Admission: decides which ready activity may go to a worker now.

An activity is published only while it holds a slot in every scope that limits it: group, tenant and role, tenant, role, global, and a seat
at a worker. One script decides for all scopes in one step. Redis holds no truth: admission is rebuilt from PostgreSQL after a wipe, and
grants nothing until then.

`lua/library.lua` defines the order in which work runs: band, virtual time of the tenant, score. `limits` puts the limits in force.
"""

from activities.admission.exchange import CLAIM_SECONDS, Exchange, Grant, exchange
from activities.admission.scripts import Closed, PassedSlot, accept, audit, inspect, start

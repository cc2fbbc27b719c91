"""Webhooks: events of a tenant, sent to programs outside, signed after Standard Webhooks and repeated until they are taken.

Whoever numbers an event writes a delivery for each webhook that wants it, in the same transaction (`tenants/events/sql/number.sql`).
Deliverers carry them out from a queue, with no transaction open. A delivery may arrive twice and always has the same `webhook-id`.
"""

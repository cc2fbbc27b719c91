-- Locks the claims of a tenant's alerts for the channels of one kind until the end of the transaction, if nobody else is claiming there.
-- Parameters  tenant, kind
-- Returns     one row, or nothing
SELECT 1 AS locked WHERE pg_try_advisory_xact_lock(hashtextextended('alerts:' || %(kind)s || ':' || %(tenant)s, 0))

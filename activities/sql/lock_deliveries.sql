-- Locks the alert deliveries of a tenant for one kind of channel until the end of the transaction, unless another transaction has the lock.
-- Parameters  tenant, kind
-- Returns     one row, or nothing if another transaction has the lock
SELECT 1 AS locked WHERE pg_try_advisory_xact_lock(hashtextextended('alerts:' || %(kind)s || ':' || %(tenant)s, 0))

-- Locks the creation and removal of the monthly jobs until the end of the transaction.
-- Returns     one row without a value
SELECT pg_advisory_xact_lock(0x6D6F6E74)

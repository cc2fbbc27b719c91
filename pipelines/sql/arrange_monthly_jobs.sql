-- Takes the lock for arranging the monthly jobs until the end of the transaction.
-- Returns     nothing of interest
SELECT pg_advisory_xact_lock(0x6D6F6E74)

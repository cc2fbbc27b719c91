-- Waits until nobody else arranges the monthly jobs, and keeps others from it until the transaction ends.
-- Returns     nothing of interest
SELECT pg_advisory_xact_lock(0x6D6F6E74)

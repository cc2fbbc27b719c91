-- Deletes the entries that usage.sql selects, and adds them to the totals. Calls a function that runs as the owner of the ledger, because
-- other roles may not delete from it.
-- Parameters  tenant, before, most
-- Returns     deleted: how many
SELECT tenants_forget_usage(%(tenant)s, (%(before)s AT TIME ZONE 'UTC')::date, %(most)s) AS deleted

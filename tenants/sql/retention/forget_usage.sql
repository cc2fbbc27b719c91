-- Deletes the entries that usage.sql selects and adds them to the totals, with a function of the owner: nobody else may delete from the ledger.
-- Parameters  tenant, before, most
-- Returns     deleted: how many
SELECT tenants_forget_usage(%(tenant)s, (%(before)s AT TIME ZONE 'UTC')::date, %(most)s) AS deleted

-- Deletes such entries and adds what they held to the totals, by a function of the owner's: nobody else may delete from the ledger.
-- Parameters  tenant, before, most
-- Returns     deleted: how many
SELECT tenants_forget_usage(%(tenant)s, (%(before)s AT TIME ZONE 'UTC')::date, %(most)s) AS deleted

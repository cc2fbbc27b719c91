-- Selects batches of mailbox items that ended before the cutoff, unless some of their items are unfinished.
-- Parameters  tenant, before: the cutoff
-- Returns     id of each
SELECT r.id FROM activities_mailboxbatch r
WHERE r.tenant_id = %(tenant)s AND r.ended_at < %(before)s
  AND NOT EXISTS (SELECT FROM activities_mailboxitem i
                  WHERE i.tenant_id = r.tenant_id AND i.batch_id = r.id AND i.state IN ('pending', 'claimed'))
ORDER BY r.ended_at

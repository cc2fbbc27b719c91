-- Selects batches of model providers that ended before the cutoff. Their items are deleted with them. A batch is kept while the activity of
-- one of its items is unfinished, because the activity may continue with an answer that the item stores.
-- Parameters  tenant, before: the cutoff
-- Returns     id of each
SELECT r.id FROM activities_providerbatch r
WHERE r.tenant_id = %(tenant)s AND r.ended_at < %(before)s
  AND NOT EXISTS (SELECT FROM activities_batchitem i JOIN activities_activity a ON a.tenant_id = i.tenant_id AND a.id = i.activity_id
                  WHERE i.tenant_id = r.tenant_id AND i.batch_id = r.id AND a.finished_at IS NULL)
ORDER BY r.ended_at

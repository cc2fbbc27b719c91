-- Inserts the items of a bulk job.
-- Parameters  tenant, job, ids, activities (arrays of uuid), alone
-- Returns     nothing
INSERT INTO activities_bulkitem (id, tenant_id, job_id, activity_id, state, alone)
SELECT w.id, %(tenant)s, %(job)s, w.activity, 'waiting', %(alone)s
FROM unnest(%(ids)s::uuid[], %(activities)s::uuid[]) AS w(id, activity)

-- Notes that steps start, each with its activity, and returns those for which that was still to be done.
-- Parameters  tenant, run, steps (array of text), activities (array of uuid)
-- Returns     step, round of each step that was pending
UPDATE pipelines_steprun s SET status = 'active', activity_id = w.activity
FROM unnest(%(steps)s::text[], %(activities)s::uuid[]) AS w(step, activity)
WHERE s.tenant_id = %(tenant)s AND s.run_id = %(run)s AND s.step = w.step AND s.status = 'pending'
RETURNING s.step, s.round

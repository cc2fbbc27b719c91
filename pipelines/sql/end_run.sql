-- Ends runs of one version whose steps have all settled. They are running, and the transaction holds their locks.
-- Parameters  tenant, runs (array of uuid), fatal: the steps whose failure fails a run (array of text)
-- Returns     nothing
-- Plan        rows are found by an array of keys, not by a join alone.
UPDATE pipelines_pipelinerun r
SET status = CASE WHEN fatally.failed THEN 'failed' ELSE 'completed' END, failed = fatally.failed, finished_at = clock_timestamp()
FROM unnest(%(runs)s::uuid[]) AS w(run) CROSS JOIN LATERAL (
    SELECT EXISTS (SELECT FROM pipelines_steprun s
                   WHERE s.run_id = w.run AND s.branch = 0 AND s.step = ANY(%(fatal)s) AND s.status = 'failed' OFFSET 0) AS failed
) fatally
WHERE r.tenant_id = %(tenant)s AND r.id = ANY(%(runs)s::uuid[]) AND r.id = w.run

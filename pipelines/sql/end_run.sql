-- Ends a run whose steps have all settled. In the transaction that holds its lock.
-- Parameters  tenant, run, fatal: the steps whose failure fails the run (array of text)
-- Returns     nothing
UPDATE pipelines_pipelinerun r
SET status = CASE WHEN fatally.failed THEN 'failed' ELSE 'completed' END, failed = fatally.failed, finished_at = clock_timestamp()
FROM (
    SELECT EXISTS (SELECT FROM pipelines_steprun s
                   WHERE s.run_id = %(run)s AND s.branch = 0 AND s.step = ANY(%(fatal)s) AND s.status = 'failed') AS failed
) fatally
WHERE r.tenant_id = %(tenant)s AND r.id = %(run)s AND r.status = 'running'

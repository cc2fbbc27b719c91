-- Finds the relatives of pipeline runs: the run that a run replays, its own replays, their replays, and so on. All of them do the same work.
-- Parameters  tenant, runs (array of uuid)
-- Returns     a row for each run that exists: run (its id), first (the id of the oldest relative, or its own), and working: the id of another
--             relative that has not ended, or null
-- Plan        each row is looked up by its key in a subquery (OFFSET 0): a plan made while the tables were small stays good.
WITH RECURSIVE older AS (
    SELECT r.id AS run, r.id, r.replay_of FROM pipelines_pipelinerun r WHERE r.tenant_id = %(tenant)s AND r.id = ANY(%(runs)s::uuid[])
    UNION ALL
    SELECT older.run, o.id, o.replay_of FROM older CROSS JOIN LATERAL (
        SELECT r.id, r.replay_of FROM pipelines_pipelinerun r WHERE r.tenant_id = %(tenant)s AND r.id = older.replay_of OFFSET 0
    ) o
), relative AS (
    SELECT run, id FROM older
    UNION
    SELECT relative.run, o.id FROM relative CROSS JOIN LATERAL (
        SELECT r.id FROM pipelines_pipelinerun r WHERE r.tenant_id = %(tenant)s AND r.replay_of = relative.id OFFSET 0
    ) o
)
SELECT relative.run, min(relative.id::text COLLATE "C")::uuid AS first,
       min(relative.id::text COLLATE "C") FILTER (WHERE state.status = 'running' AND relative.id <> relative.run)::uuid AS working
FROM relative CROSS JOIN LATERAL (
    SELECT r.status FROM pipelines_pipelinerun r WHERE r.tenant_id = %(tenant)s AND r.id = relative.id OFFSET 0
) state
GROUP BY relative.run

-- Selects pipeline runs that ended before the cutoff, with all activities of them and for them, if these ended before it as well and no
-- unfinished work refers to them; oldest first. Failed work with an open dead letter counts as unfinished, because it may be retried.
-- Parameters  tenant, before: the cutoff; ended: statuses of ended activities; most: the maximum number of runs
-- Plan        the second condition on the tenant permits the partial index for lists, which has the order of the result.
-- Returns     family, member: the run and each activity of it; a run without activities has one row without a member
WITH RECURSIVE ended_runs AS (
    SELECT r.id FROM pipelines_pipelinerun r
    WHERE r.tenant_id = %(tenant)s AND r.tenant_id > '00000000-0000-0000-0000-000000000000' AND r.status <> 'running' AND r.finished_at < %(before)s
      AND NOT EXISTS (
        WITH RECURSIVE below AS (
            SELECT a.id FROM activities_activity a WHERE a.tenant_id = %(tenant)s AND a.pipeline_run_id = r.id
            UNION
            SELECT c.id FROM below JOIN activities_activity c ON c.parent_id = below.id AND c.tenant_id = %(tenant)s
        )
        SELECT FROM below JOIN activities_activity m ON m.id = below.id
        WHERE m.status <> ALL(%(ended)s) OR m.finished_at >= %(before)s OR m.pipeline_run_id <> r.id
           OR EXISTS (SELECT FROM activities_deadletter d WHERE d.activity_id = m.id AND d.state = 'open')
           OR EXISTS (SELECT FROM activities_activity l
                      WHERE l.tenant_id = %(tenant)s AND l.finished_at IS NULL AND l.input_ref = m.output_ref)
           OR EXISTS (SELECT FROM activities_deadletter d JOIN activities_activity l ON l.tenant_id = d.tenant_id AND l.id = d.activity_id
                      WHERE d.tenant_id = %(tenant)s AND d.state = 'open' AND l.input_ref = m.output_ref)
           OR EXISTS (SELECT FROM approval_linked_activities k
                      JOIN activities_activity l ON l.id IN (k.activity_id, k.approval_id)
                      WHERE (k.approval_id = m.id OR k.activity_id = m.id) AND l.finished_at IS NULL))
      -- A replay refers to the work and the outputs of this run, also after its end: it may be replayed itself.
      AND NOT EXISTS (SELECT FROM pipelines_pipelinerun o WHERE o.tenant_id = %(tenant)s AND o.replay_of = r.id)
      -- A period counts its runs. It has not ended, or could continue with one that failed.
      AND NOT EXISTS (
        SELECT FROM pipelines_deliverableperiod p
        WHERE p.id = r.period_id AND p.tenant_id = %(tenant)s
          AND (p.ended_at IS NULL OR p.ended_at >= %(before)s
               OR EXISTS (SELECT FROM pipelines_pipelinerun s
                          JOIN activities_activity a ON a.tenant_id = %(tenant)s AND a.pipeline_run_id = s.id
                          JOIN activities_deadletter d ON d.activity_id = a.id AND d.state = 'open'
                          WHERE s.tenant_id = %(tenant)s AND s.period_id = p.id)))
    ORDER BY r.started_at LIMIT %(most)s
), tree AS (
    SELECT ended_runs.id AS family, a.id AS member FROM ended_runs
    JOIN activities_activity a ON a.pipeline_run_id = ended_runs.id AND a.tenant_id = %(tenant)s
    UNION
    SELECT tree.family, c.id FROM tree
    JOIN activities_activity c ON c.parent_id = tree.member AND c.tenant_id = %(tenant)s
)
SELECT ended_runs.id AS family, tree.member FROM ended_runs LEFT JOIN tree ON tree.family = ended_runs.id

-- Selects trees of activities outside of pipelines whose members have all ended before the cutoff, and to which no unfinished work refers;
-- oldest first. Failed work with an open dead letter counts as unfinished, because it may be retried.
-- Parameters  tenant, before: the cutoff; ended: statuses of ended activities; most: the maximum number of trees
-- Plan        the second condition on the tenant permits the partial index for lists, which has the order of the result.
-- Returns     family, member: the root and each activity of its tree
WITH RECURSIVE root AS (
    SELECT r.id FROM activities_activity r
    WHERE r.tenant_id = %(tenant)s AND r.tenant_id > '00000000-0000-0000-0000-000000000000' AND r.parent_id IS NULL AND r.pipeline_run_id IS NULL
      AND r.created_at < %(before)s AND r.finished_at < %(before)s AND r.status = ANY(%(ended)s)
      AND NOT EXISTS (
        WITH RECURSIVE below AS (
            SELECT r.id
            UNION ALL
            SELECT c.id FROM below JOIN activities_activity c ON c.parent_id = below.id AND c.tenant_id = %(tenant)s
        )
        SELECT FROM below JOIN activities_activity m ON m.id = below.id
        WHERE m.status <> ALL(%(ended)s) OR m.finished_at >= %(before)s OR m.pipeline_run_id IS NOT NULL
           OR EXISTS (SELECT FROM activities_deadletter d WHERE d.activity_id = m.id AND d.state = 'open')
           -- An unfinished activity has the output of this one as its input.
           OR EXISTS (SELECT FROM activities_activity l
                      WHERE l.tenant_id = %(tenant)s AND l.finished_at IS NULL AND l.input_ref = m.output_ref)
           OR EXISTS (SELECT FROM activities_deadletter d JOIN activities_activity l ON l.tenant_id = d.tenant_id AND l.id = d.activity_id
                      WHERE d.tenant_id = %(tenant)s AND d.state = 'open' AND l.input_ref = m.output_ref)
           -- An approval is kept while one of its activities is unfinished, and its activities are kept while it is open.
           OR EXISTS (SELECT FROM approval_linked_activities k JOIN activities_activity l ON l.id = k.activity_id
                      WHERE k.approval_id = m.id AND l.finished_at IS NULL)
           OR EXISTS (SELECT FROM approval_linked_activities k JOIN activities_activity l ON l.id = k.approval_id
                      WHERE k.activity_id = m.id AND l.finished_at IS NULL))
    ORDER BY r.created_at LIMIT %(most)s
), tree AS (
    SELECT id AS family, id AS member FROM root
    UNION ALL
    SELECT tree.family, c.id FROM tree
    JOIN activities_activity c ON c.parent_id = tree.member AND c.tenant_id = %(tenant)s
)
SELECT family, member FROM tree

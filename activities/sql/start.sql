-- Starts a claimed activity whose input had to be fetched. Its agent is called next.
-- Parameters  tenant, activity, run, fence, sources, target, verb
-- Returns     one row, or nothing if the run was superseded or cancelled meanwhile.
WITH moved AS (
    UPDATE activities_activity
    SET status = %(target)s, version = version + 1, started_at = clock_timestamp()
    WHERE tenant_id = %(tenant)s AND id = %(activity)s AND fence = %(fence)s AND status = ANY(%(sources)s)
    RETURNING id, tenant_id, version
), event AS (
    INSERT INTO activities_activityevent (tenant_id, activity_id, seq, verb, source, target, actor, run_id, detail, at)
    SELECT tenant_id, id, version, %(verb)s, 'assigned', %(target)s, 'worker', %(run)s, '{}'::jsonb, clock_timestamp()
    FROM moved
)
SELECT version FROM moved

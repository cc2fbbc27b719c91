-- Counts the wakes of activities within the window and since their last progress.
-- Parameters  tenant, activities, window: seconds
-- Returns     activity_id, wakes
-- Progress is an accepted result, a successful subtask, or a retry by an operator.
SELECT a.id AS activity_id, (
    SELECT count(*)::int FROM activities_activityevent e
    WHERE e.tenant_id = %(tenant)s AND e.activity_id = a.id AND e.verb = 'wake' AND e.at > progress.at
) AS wakes
FROM unnest(%(activities)s::uuid[]) AS a(id)
CROSS JOIN LATERAL (
    SELECT greatest(
        clock_timestamp() - %(window)s * interval '1 second',
        (SELECT max(e.at) FROM activities_activityevent e
         WHERE e.tenant_id = %(tenant)s AND e.activity_id = a.id
           AND (e.verb = 'retry' OR (e.verb = 'wake' AND e.detail ? 'progress'))),
        (SELECT max(r.ended_at) FROM activities_activityrun r
         WHERE r.tenant_id = %(tenant)s AND r.activity_id = a.id AND r.status = 'completed' AND r.ended_by_tool = '')
    ) AS at
) progress

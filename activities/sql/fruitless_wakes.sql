-- How often activities have been woken within the window without getting anywhere since.
-- Parameters  tenant, activities, window: seconds
-- Returns     activity_id, wakes
-- Getting somewhere is an accepted result, a subtask with a good end, or an operator who starts it anew.
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

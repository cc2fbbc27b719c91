-- I05  At most one result is accepted per wake, never one of a superseded run.
-- A wake belongs to one run at a time, so a completed run that has no wake, nor one of its own, took the wake of another run. A run that was
-- requeued has returned all its wakes. The result of the last completed run is the activity's output, unless a person has approved an
-- edited one: then the output is the edited one, and the gate names both. A run that a tool has ended is completed without a result.
-- Returns     id of each activity that violates this
SELECT r.activity_id AS id FROM activities_activityrun r
WHERE r.status = 'completed' AND r.own_wake IS NULL AND NOT EXISTS (
    SELECT FROM activities_wake w WHERE w.activity_id = r.activity_id AND w.run_id = r.id AND w.state <> 'pending')
UNION
SELECT r.activity_id FROM activities_activityrun r JOIN activities_activityrun later
    ON later.activity_id = r.activity_id AND later.fence > r.fence AND later.started_at + interval '1 second' < r.ended_at
WHERE r.status = 'completed'
UNION
SELECT w.activity_id FROM activities_wake w LEFT JOIN activities_activityrun r ON r.id = w.run_id
WHERE w.state = 'taken' AND (r.id IS NULL OR r.status NOT IN ('running', 'completed') AND EXISTS (
    SELECT FROM activities_activityevent e WHERE e.activity_id = w.activity_id AND e.run_id = r.id AND e.verb = 'release'))
UNION
SELECT a.id FROM activities_activity a JOIN (
    SELECT DISTINCT ON (activity_id) activity_id, id FROM activities_activityrun
    WHERE status = 'completed' AND ended_by_tool = '' ORDER BY activity_id, fence DESC
) accepted ON accepted.activity_id = a.id
WHERE a.output_ref IS DISTINCT FROM accepted.id AND NOT EXISTS (
    SELECT FROM activities_activity g
    WHERE g.parent_id = a.id AND g.link_kind = 'gate' AND g.status = 'approved' AND a.status = 'approved'
      AND g.input_ref = accepted.id AND g.output_ref = a.output_ref)

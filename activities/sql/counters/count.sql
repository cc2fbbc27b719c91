-- Adds a range of the history to the counters. The transaction has locked the mark.
-- Parameters  after, until: ids of events; settled, running: statuses; durations, attempts: upper bounds of buckets, ascending, with
--             infinity as the last one
-- Returns     nothing
-- Counts      submitted: by role. ended: moves to a settled status, by role and status. wait: seconds from when the activity could be
--             claimed to its claim. run: seconds from the claim to the end of a run, by status of the run. attempts: the number of the
--             attempt with which an activity succeeded or finally failed. refused: runs that ended because their agent or provider was
--             called too often (429), by role; runs that were held back before any call are not counted.
-- Plan        each event looks up its activity, the event before it and its run by their keys.
WITH fresh AS MATERIALIZED (
    SELECT e.activity_id, e.seq, e.verb, e.source, e.target, e.at, a.not_before, a.assignee_type, coalesce(a.agent_role, '') AS role
    FROM activities_activityevent e
    CROSS JOIN LATERAL (SELECT not_before, assignee_type, agent_role FROM activities_activity WHERE id = e.activity_id OFFSET 0) a
    WHERE e.id > %(after)s AND e.id <= %(until)s
), ended AS MATERIALIZED (
    SELECT f.role, f.verb, r.status, r.attempt, r.code, extract(epoch FROM f.at - r.started_at)::float AS seconds
    FROM fresh f CROSS JOIN LATERAL (
        SELECT o.status, o.attempt, o.started_at, o.error ->> 'code' AS code FROM activities_activityrun o
        WHERE o.activity_id = f.activity_id AND o.started_at <= f.at ORDER BY o.fence DESC LIMIT 1
    ) r
    WHERE f.assignee_type = 'agent' AND f.source = ANY(%(running)s) AND NOT f.target = ANY(%(running)s)
), observed AS (
    SELECT 'submitted' AS name, role, '' AS status, 0::float AS value, ARRAY['infinity'::float] AS bounds FROM fresh WHERE verb = 'submit'
    UNION ALL
    SELECT 'ended', role, target, 0, ARRAY['infinity'::float] FROM fresh WHERE target = ANY(%(settled)s)
    UNION ALL
    SELECT 'wait', f.role, '', greatest(0, extract(epoch FROM f.at - greatest(
               b.at, (b.detail ->> 'due_at')::timestamptz, CASE WHEN b.verb = 'submit' THEN f.not_before END))::float), %(durations)s::float[]
    FROM fresh f
    CROSS JOIN LATERAL (
        -- The move that made it claimable. Changes by people while it waited do not change its status.
        SELECT o.verb, o.at, o.detail FROM activities_activityevent o
        WHERE o.activity_id = f.activity_id AND o.seq < f.seq AND o.source IS DISTINCT FROM o.target ORDER BY o.seq DESC LIMIT 1
    ) b
    WHERE f.verb = 'claim' OR f.verb = 'start' AND f.source = 'created'
    UNION ALL
    SELECT 'run', role, status, greatest(0, seconds), %(durations)s::float[] FROM ended
    UNION ALL
    SELECT 'refused', role, '', 0, ARRAY['infinity'::float] FROM ended WHERE status = 'failed' AND code = 'rate_limited'
    UNION ALL
    SELECT 'attempts', role, '', attempt, %(attempts)s::float[] FROM ended WHERE verb IN ('complete', 'request_approval', 'fail')
)
INSERT INTO activities_counter AS kept (name, role, status, le, count, total)
SELECT o.name, o.role, o.status, bucket.le, count(*), sum(o.value)
FROM observed o CROSS JOIN LATERAL (SELECT min(bound) AS le FROM unnest(o.bounds) AS bound WHERE bound >= o.value) bucket
GROUP BY o.name, o.role, o.status, bucket.le
ON CONFLICT (name, role, status, le) DO UPDATE SET count = kept.count + excluded.count, total = kept.total + excluded.total

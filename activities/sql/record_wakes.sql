-- Records wakes, each for one activity. An equal pending wake absorbs the new one.
-- A new wake does not shorten a delay: while a wake of the activity is delayed (until its date, for a retry, a rate limit, money), a new
-- one is delayed until the last of these is due, so that all are taken together. Wakes with the cause `later` do not delay others, and
-- keep their time while the activity waits for money. No wake is due before the date of its activity.
-- Parameters  tenant, cause, provenance (JSON as text, or null), and arrays of equal length: ids, activities, reasons,
--             payloads (JSON as text), fingerprints, due (may be null)
-- Plan        the coalesce keeps the planner from reading the index of all delayed wakes for those of one activity.
-- Returns     id, activity_id, merged (0: it is new), due_at
INSERT INTO activities_wake (id, tenant_id, activity_id, reason, cause, payload, fingerprint, state, due_at, merged, provenance, created_at)
SELECT w.id, %(tenant)s, w.activity_id, w.reason,
       -- A budget releases waiting wakes by this cause.
       CASE WHEN held.cause = 'budget' THEN 'budget' ELSE %(cause)s END, w.payload::jsonb, w.fingerprint, 'pending',
       greatest(w.due_at, held.until, (
           SELECT CASE WHEN a.not_before > now() THEN a.not_before END FROM activities_activity a
           WHERE a.tenant_id = %(tenant)s AND a.id = w.activity_id)), 0, %(provenance)s::jsonb, clock_timestamp()
FROM unnest(%(ids)s::uuid[], %(activities)s::uuid[], %(reasons)s::text[], %(payloads)s::text[], %(fingerprints)s::text[],
            %(due)s::timestamptz[]) AS w(id, activity_id, reason, payload, fingerprint, due_at)
LEFT JOIN LATERAL (
    SELECT p.due_at AS until, p.cause FROM activities_wake p
    WHERE p.activity_id = w.activity_id AND p.state = 'pending' AND coalesce(p.due_at > now(), false) AND p.cause <> 'later'
    ORDER BY p.due_at DESC LIMIT 1
) held ON NOT (held.cause = 'budget' AND %(cause)s = 'later')
ON CONFLICT (activity_id, reason, fingerprint) WHERE state = 'pending' DO UPDATE SET merged = activities_wake.merged + 1
RETURNING id, activity_id, merged, due_at

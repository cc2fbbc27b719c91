-- Records wakes, each for one activity. An equal one that is pending already takes the new one in.
-- Parameters  tenant, cause, provenance (JSON as text, or null), and arrays of equal length: ids, activities, reasons, payloads (JSON as text), fingerprints, due (may be null)
-- Returns     id, activity_id, merged (0: it is new)
INSERT INTO activities_wake (id, tenant_id, activity_id, reason, cause, payload, fingerprint, state, due_at, merged, provenance, created_at)
SELECT w.id, %(tenant)s, w.activity_id, w.reason, %(cause)s, w.payload::jsonb, w.fingerprint, 'pending', w.due_at, 0, %(provenance)s::jsonb, clock_timestamp()
FROM unnest(%(ids)s::uuid[], %(activities)s::uuid[], %(reasons)s::text[], %(payloads)s::text[], %(fingerprints)s::text[],
            %(due)s::timestamptz[]) AS w(id, activity_id, reason, payload, fingerprint, due_at)
ON CONFLICT (activity_id, reason, fingerprint) WHERE state = 'pending' DO UPDATE SET merged = activities_wake.merged + 1
RETURNING id, activity_id, merged

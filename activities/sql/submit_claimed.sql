-- Parts of `submit.sql` for one activity that a worker starts immediately: the statement that creates it also claims it. Nobody else can
-- see the activity before, so the checks of `claim.sql` are not needed. The activity has no date, and its wake refers to no outputs. No row
-- of a wake is written, because nothing waits: the run keeps it, and returns it to the outbox if it ends without a result (`requeue.sql`).
-- Parameters  tenant, run, grant; claim and start: target; those of `claimed.sql`
-- Returns     also what `claim.sql` returns. An activity that was not created is not claimed.

-- part: facts
, facts AS MATERIALIZED (
    SELECT w.id AS activity, %(run)s::uuid AS run, %(grant)s::text AS "grant", w.wake_reason AS reason,
           jsonb_build_object('payload', coalesce(w.wake_payload, '{}'::jsonb), 'provenance', w.provenance) AS own_wake,
           (w.input_ref IS NULL OR s.id IS NOT NULL) AND w.input -> 'refs' IS NULL AS at_hand, s.content, s.data, {session} AS session
    FROM wanted w CROSS JOIN LATERAL (SELECT coalesce(w.mailbox_id, w.deliverable_id) AS matter) c
    LEFT JOIN LATERAL (SELECT o.id, o.content, o.data FROM activities_outputspool o WHERE o.id = w.input_ref OFFSET 0) s ON true
)

-- part: with_facts
JOIN facts ON facts.activity = wanted.id

-- part: state_columns
fence, attempts, assigned_at, started_at, version, status

-- part: state
1, 1, clock_timestamp(), CASE WHEN at_hand THEN clock_timestamp() END, CASE WHEN at_hand THEN 3 ELSE 2 END,
           CASE WHEN at_hand THEN %(start_target)s ELSE %(claim_target)s END

-- part: claimed
, claimed AS (
    SELECT created.*, facts.at_hand AS started, facts.reason, facts.own_wake, facts.session, facts.run, facts."grant",
           created.created_at AS began_at, facts.content AS input_content, facts.data AS input_data
    FROM created JOIN facts ON facts.activity = created.id
)

-- part: claim_event
UNION ALL {event}

-- part: run_or_wake
, {run}

-- part: rows
SELECT claimed.*, jsonb_build_array(own_wake || jsonb_build_object('id', id, 'reason', reason)) AS wakes FROM claimed

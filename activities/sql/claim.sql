-- Claims any number of created activities, each for one run: increments the fencing number, takes every wake that is due or waits for
-- money, and creates the run with its entry in the usage ledger. If PostgreSQL has all of its input, the activity is also started.
-- An activity is not claimed before the last of its wakes is due. Exceptions: wakes with the cause `later` delay nothing, nor do wakes that
-- wait for money, because the run asks for the money again.
-- Parameters  activities (array of uuid, sorted), runs (array of uuid), grants (array of text): an activity, its run and its grant;
--             for all of them tenant, role, worker, timeout, agent_version, briefing (digest of the agent's instructions), day;
--             claim and start: verb, sources, target
-- Returns     a row for each claimed activity, with everything that its run needs, and `started`.
--             `session`: the live session of the role for the activity's mailbox, or without one for its deliverable, and whether its
--             briefing fits. The run continues the session only if it fits.
-- Guarantee   of two simultaneous claims one gets the row, because the update checks the status again after waiting for the other. A grant
--             serves one run: a second delivery of its message claims nothing, even if the activity was suspended and woken meanwhile.
--             A future date that is set after the wakes were read prevents the claim in the same way. Rows are locked in the order of
--             their ids, so these must be sorted.
-- Parts       those of `claimed.sql`
-- Plan        each row is looked up by its key in a subquery (OFFSET 0, LIMIT 1) or by an array of keys, never by a join alone, so that the
--             planner never reads all pending wakes or all runs, whatever the table statistics say.
WITH waiting AS MATERIALIZED (
    SELECT requested.activity, requested.run, requested."grant", wakes.reason, wakes.needs_outputs
    FROM unnest(%(activities)s::uuid[], %(runs)s::uuid[], %(grants)s::text[]) AS requested(activity, run, "grant") CROSS JOIN LATERAL (
        SELECT (array_agg(w.reason ORDER BY w.id DESC) FILTER (WHERE w.due_at IS NULL OR w.due_at <= now()))[1] AS reason,
               coalesce(bool_or(w.due_at > now() AND w.cause NOT IN ('later', 'budget')), false) AS too_early,
               bool_or(w.payload ->> 'rejection_ref' IS NOT NULL OR w.payload ->> 'subtask_output_ref' IS NOT NULL) AS needs_outputs
        FROM (SELECT * FROM activities_wake p WHERE p.activity_id = requested.activity AND p.state = 'pending' OFFSET 0) w
    ) wakes
    LEFT JOIN LATERAL (
        SELECT true AS found FROM activities_activityrun u WHERE u.activity_id = requested.activity AND u."grant" = requested."grant" LIMIT 1
    ) used ON true
    WHERE wakes.reason IS NOT NULL AND NOT wakes.too_early AND used.found IS NULL
), facts AS MATERIALIZED (
    -- Outputs that are no longer in the spool must be fetched from MongoDB first, outside of this transaction.
    SELECT waiting.activity, waiting.run, waiting."grant", waiting.reason, c.not_before,
           (c.input_ref IS NULL OR s.id IS NOT NULL) AND c.input -> 'refs' IS NULL AND NOT waiting.needs_outputs AS at_hand,
           s.content, s.data,
           {session} AS session
    FROM waiting
    CROSS JOIN LATERAL (
        SELECT a.not_before, a.input_ref, a.input, coalesce(a.mailbox_id, a.deliverable_id) AS matter
        FROM activities_activity a WHERE a.tenant_id = %(tenant)s AND a.id = waiting.activity OFFSET 0
    ) c
    LEFT JOIN LATERAL (SELECT o.id, o.content, o.data FROM activities_outputspool o WHERE o.id = c.input_ref OFFSET 0) s ON true
), claimed AS (
    UPDATE activities_activity a
    SET status = CASE WHEN facts.at_hand THEN %(start_target)s ELSE %(claim_target)s END,
        version = a.version + CASE WHEN facts.at_hand THEN 2 ELSE 1 END,
        fence = a.fence + 1, attempts = a.attempts + 1, assigned_at = clock_timestamp(), wake_reason = facts.reason, run_now_at = NULL,
        started_at = CASE WHEN facts.at_hand THEN clock_timestamp() ELSE a.started_at END
    FROM facts
    WHERE a.tenant_id = %(tenant)s AND a.id = ANY(%(activities)s::uuid[]) AND a.id = facts.activity
      AND a.status = ANY(%(claim_sources)s) AND a.agent_role = %(role)s
      AND (a.expires_at IS NULL OR a.expires_at > now())
      AND (a.not_before IS NOT DISTINCT FROM facts.not_before OR a.not_before <= now())
    RETURNING {columns},
              facts.at_hand AS started, facts.reason, NULL::jsonb AS own_wake, facts.session, facts.run, facts."grant",
              -- The time when the wakes were read. One that is recorded while this statement waits is for the next run (`last_reasons.sql`).
              statement_timestamp() AS began_at,
              facts.content AS input_content, facts.data AS input_data
), wake AS (
    UPDATE activities_wake w
    SET state = 'taken', run_id = claimed.run
    FROM claimed
    WHERE w.activity_id = ANY(%(activities)s::uuid[]) AND w.activity_id = claimed.id AND w.state = 'pending'
      AND (w.due_at IS NULL OR w.due_at <= now() OR w.cause = 'budget')
    RETURNING w.id, w.activity_id, w.reason, w.payload, w.provenance
), event AS (
    INSERT INTO activities_activityevent (tenant_id, activity_id, seq, verb, source, target, actor, run_id, detail, at)
    {event}
), {run}
SELECT claimed.*, (
    SELECT jsonb_agg(jsonb_build_object('id', t.id, 'reason', t.reason, 'payload', t.payload, 'provenance', t.provenance) ORDER BY t.id)
    FROM wake t WHERE t.activity_id = claimed.id
) AS wakes FROM claimed

-- Records the total usage that a run reports: enters the increase in the ledger, and stores the total in the run. If its activity has an open
-- dead letter, that gets the new cost.
-- Parameters  tenant, run, day; input_tokens, output_tokens; cost: dollars, null if the agent does not report them; model, may be null;
--             input_price, output_price: dollars per token of the model, null if unknown; beat: whether this is also a heartbeat;
--             progress: null if unchanged
-- Returns     one row: activity, role, deliverable, the increase in dollars and tokens, live: whether the run continues, budgeted: whether
--             the tenant has budgets; nothing if there is no such run.
-- The run's row is written once, because PostgreSQL checks the foreign keys of a row that a transaction writes twice, which would lock the
-- activity after the run.
-- Guarantee   reports are totals, so a repeated or late report adds nothing. The run's row is locked. A cost that the agent
--             reports replaces the cost calculated from prices, so an entry may be negative.
WITH run AS MATERIALIZED (
    SELECT r.id, r.activity_id, r.status, coalesce(r.usage, '{}'::jsonb) AS usage FROM activities_activityrun r
    WHERE r.tenant_id = %(tenant)s AND r.id = %(run)s
    FOR UPDATE
), before AS MATERIALIZED (
    SELECT run.*, coalesce((usage ->> 'input_tokens')::bigint, 0) AS input, coalesce((usage ->> 'output_tokens')::bigint, 0) AS output,
           coalesce((usage ->> 'cost_usd')::numeric, 0) AS dollars,
           usage ->> 'cost_usd' IS NOT NULL AND usage ->> 'cost_source' IS NULL AS has_own_cost
    FROM run
), total AS MATERIALIZED (
    SELECT before.*, greatest(input, %(input_tokens)s) AS now_input, greatest(output, %(output_tokens)s) AS now_output,
           -- greatest() ignores nulls.
           greatest(CASE WHEN has_own_cost THEN dollars END, %(cost)s::numeric) AS reported
    FROM before
), new_usage AS MATERIALIZED (
    SELECT total.*, now_input - input AS new_input, now_output - output AS new_output,
           coalesce(reported, round(dollars + (now_input - input) * coalesce(%(input_price)s::numeric, 0)
                                            + (now_output - output) * coalesce(%(output_price)s::numeric, 0), 12)) AS now_dollars,
           reported IS NULL AND %(input_price)s::numeric IS NULL AS unpriced
    FROM total
), changed AS (
    UPDATE activities_activityrun r
    SET usage = jsonb_build_object(
        'input_tokens', now_input, 'output_tokens', now_output,
        'cost_usd', CASE WHEN unpriced AND now_dollars = 0 THEN NULL ELSE trim_scale(now_dollars)::text END,
        'model', coalesce(%(model)s, n.usage ->> 'model'))
        -- A cost without a source was reported by the agent.
        || CASE WHEN reported IS NULL AND NOT (unpriced AND now_dollars = 0) THEN '{"cost_source": "prices"}'::jsonb ELSE '{}'::jsonb END,
        beats = CASE WHEN %(beat)s AND n.status = 'running' THEN r.beats + 1 ELSE r.beats END,
        beat_at = CASE WHEN %(beat)s AND n.status = 'running' THEN now() ELSE r.beat_at END,
        progress = CASE WHEN n.status = 'running' THEN coalesce(%(progress)s, r.progress) ELSE r.progress END
    FROM new_usage n WHERE r.tenant_id = %(tenant)s AND r.id = n.id
), entry AS (
    INSERT INTO tenants_usageentry
        (tenant_id, at, day, agent_role, deliverable_id, activity_id, run_id, pipeline_run_id, pipeline_id, model, input_tokens,
         output_tokens, dollars, runs, unpriced)
    SELECT %(tenant)s, clock_timestamp(), %(day)s, a.agent_role, a.deliverable_id, a.id, n.id, a.pipeline_run_id, a.pipeline_id,
           coalesce(%(model)s, n.usage ->> 'model', ''), new_input, new_output, now_dollars - n.dollars, 0,
           unpriced AND (new_input > 0 OR new_output > 0)
    FROM new_usage n JOIN activities_activity a ON a.tenant_id = %(tenant)s AND a.id = n.activity_id
    WHERE new_input > 0 OR new_output > 0 OR now_dollars <> n.dollars
), letter AS (
    -- Usage that is reported after the activity has failed. Cut to the size of the column, as in record_dead_letter.sql.
    UPDATE activities_deadletter d
    SET cost_usd = least(n.now_dollars + coalesce((SELECT sum((r.usage ->> 'cost_usd')::numeric) FROM activities_activityrun r
                         WHERE r.tenant_id = %(tenant)s AND r.activity_id = n.activity_id AND r.id <> n.id), 0), 99999999)
    FROM new_usage n
    WHERE n.status <> 'running' AND now_dollars <> n.dollars
        AND d.tenant_id = %(tenant)s AND d.activity_id = n.activity_id AND d.state = 'open'
)
SELECT n.activity_id AS activity, a.agent_role AS role, a.deliverable_id AS deliverable, now_dollars - n.dollars AS dollars,
       (new_input + new_output)::bigint AS tokens, n.status = 'running' AS live,
       EXISTS (SELECT FROM tenants_budget b WHERE b.tenant_id = %(tenant)s AND b.deleted_at IS NULL) AS budgeted
FROM new_usage n JOIN activities_activity a ON a.tenant_id = %(tenant)s AND a.id = n.activity_id

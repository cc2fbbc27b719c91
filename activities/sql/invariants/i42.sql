-- I42  The ledger records the start of each run, and the usage that it has reported.
-- Returns     id of each run that violates this
-- Only runs in the ledger are checked: the ledger is kept longer than runs, and runs from before the ledger are not in it.
WITH entered AS (
    SELECT run_id, sum(runs) AS runs, sum(input_tokens) AS input, sum(output_tokens) AS output, sum(dollars) AS dollars
    FROM tenants_usageentry GROUP BY run_id
)
SELECT r.id FROM entered e JOIN activities_activityrun r ON r.id = e.run_id
WHERE e.runs <> 1
   OR e.input <> coalesce((r.usage ->> 'input_tokens')::bigint, 0)
   OR e.output <> coalesce((r.usage ->> 'output_tokens')::bigint, 0)
   OR e.dollars <> coalesce((r.usage ->> 'cost_usd')::numeric, 0)

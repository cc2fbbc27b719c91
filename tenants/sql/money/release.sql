-- Releases the amounts that budgets have reserved for runs that have ended.
-- Parameters  tenant, runs
-- Returns     id of each budget that has more room now
WITH budget AS MATERIALIZED (
    SELECT b.id, b.reserved FROM tenants_budget b
    WHERE b.tenant_id = %(tenant)s
      AND b.id IN (SELECT r.budget_id FROM tenants_reservation r WHERE r.tenant_id = %(tenant)s AND r.run_id = ANY(%(runs)s))
    ORDER BY b.id FOR UPDATE
), deleted AS (
    DELETE FROM tenants_reservation r WHERE r.tenant_id = %(tenant)s AND r.run_id = ANY(%(runs)s) RETURNING r.budget_id, r.amount
), sums AS (
    SELECT budget_id, sum(amount) AS amount FROM deleted GROUP BY budget_id
)
UPDATE tenants_budget b SET reserved = budget.reserved - sums.amount
FROM budget JOIN sums ON sums.budget_id = budget.id
WHERE b.tenant_id = %(tenant)s AND b.id = budget.id
RETURNING b.id

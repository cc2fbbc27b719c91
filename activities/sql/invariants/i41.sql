-- I41  Budgets reserve money for live runs only, and exactly as much as the reservations say.
-- Returns     id of each budget that violates this
SELECT k.budget_id AS id FROM tenants_reservation k
LEFT JOIN activities_activityrun r ON r.tenant_id = k.tenant_id AND r.id = k.run_id AND r.status = 'running'
WHERE r.id IS NULL OR k.amount < 0
UNION
SELECT b.id FROM tenants_budget b LEFT JOIN (
    SELECT budget_id, sum(amount) AS amount FROM tenants_reservation GROUP BY budget_id
) k ON k.budget_id = b.id
WHERE b.reserved <> coalesce(k.amount, 0)

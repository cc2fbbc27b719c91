-- Selects all chains that have entries, in the order of their ids.
-- Parameters  none
-- Returns     chain
-- Plan        one lookup in the index of (chain, number) for each chain, however long the chains are
WITH RECURSIVE found AS (
    (SELECT chain FROM tenants_auditentry ORDER BY chain LIMIT 1)
    UNION ALL
    SELECT following.chain FROM found
    CROSS JOIN LATERAL (SELECT e.chain FROM tenants_auditentry e WHERE e.chain > found.chain ORDER BY e.chain LIMIT 1) following
)
SELECT chain FROM found

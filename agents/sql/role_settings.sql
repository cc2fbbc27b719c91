-- Reads all rows that determine the settings of a role for a tenant.
-- Parameters  tenant, role
-- Returns     one row: `agent`, the registry's row, and `own`, the tenant's settings of the role, as JSON; version and endpoint of the
--             version in production; `platform`, the scheduling settings, as JSON; has_skills (whether the tenant has a skill for the
--             role), budgeted (whether a budget may apply to its runs). Missing values are null. No row if the role does not exist.
-- JSON is returned as text, so that the caller parses its numbers.
SELECT to_jsonb(a)::text AS agent, to_jsonb(c)::text AS own, d.version, d.endpoint,
       (SELECT value::text FROM agents_platformconfig WHERE key = 'scheduler') AS platform,
       EXISTS (SELECT FROM agents_skill s
               WHERE s.tenant_id = %(tenant)s AND s.enabled AND (s.roles = '{}' OR %(role)s = ANY (s.roles))) AS has_skills,
       EXISTS (SELECT FROM tenants_budget b
               WHERE b.tenant_id = %(tenant)s AND b.deleted_at IS NULL
                 AND (b.agent_role IS NULL OR b.agent_role = %(role)s)) AS budgeted
FROM agents_agent a
LEFT JOIN agents_agentconfig c ON c.tenant_id = %(tenant)s AND c.role = a.role
LEFT JOIN agents_agentversiondeployment d ON d.agent_id = a.role AND d.environment = 'production' AND d.replaced_at IS NULL
WHERE a.role = %(role)s

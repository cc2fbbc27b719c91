-- Counts live runs by role.
-- Returns     agent_role, running, accepted (those of them whose agent has accepted the work and will call back)
SELECT a.agent_role, count(*) AS running, count(r.accepted_at) AS accepted
FROM activities_activityrun r JOIN activities_activity a ON a.id = r.activity_id
WHERE r.status = 'running'
GROUP BY a.agent_role

-- I25  Tool calls of agents stay within the limits, and each takes effect once.
-- Parameters  calls: per run; subtasks: per activity; depth: of nested subtasks; tree: activities per tree of subtasks;
--             handed_on: how often work may have been reassigned, including the reassignment by the agent;
--             tools: by kind of link, the only tool that creates it
-- Returns     id of each activity that violates this
-- The limits are the current ones, so calls from before a limit was lowered may look like too many. People may add successors to a tree,
-- so only its subtasks are counted. A question about none of the agent's own work has no effect.
-- If a question to people does not end its run and repeats an open one, the open one is returned, so both calls have one effect together.
WITH RECURSIVE linked AS MATERIALIZED (
    SELECT id, parent_id, link_kind, agent_role FROM activities_activity
    WHERE link_kind IN ('subtask', 'revision_of', 'reassigned_from')
), tree AS (
    -- Each tree from its root, which is neither a subtask nor a successor.
    SELECT c.parent_id AS root, c.id, (c.link_kind = 'subtask')::int AS depth, (c.link_kind = 'subtask')::int AS is_subtask
    FROM linked c LEFT JOIN linked p ON p.id = c.parent_id WHERE p.id IS NULL
    UNION ALL
    SELECT tree.root, c.id, tree.depth + (c.link_kind = 'subtask')::int, (c.link_kind = 'subtask')::int
    FROM tree JOIN linked c ON c.parent_id = tree.id
), calls AS (
    SELECT activity_id, run_id, tool, answer ->> 'id' AS effect,
           NOT (answer ->> 'stop')::boolean AND (tool = 'create_approval' OR arguments ->> 'human_role' IS NOT NULL) AS may_repeat
    FROM activities_toolcall
), reassignments AS (
    -- Each reassignment by an agent, with all predecessors of the new activity.
    SELECT h.id AS successor, h.agent_role, h.parent_id AS before, 1 AS times
    FROM calls JOIN linked h ON h.id = calls.effect::uuid WHERE calls.tool = 'reassign_task'
    UNION ALL
    SELECT reassignments.successor, reassignments.agent_role, b.parent_id, reassignments.times + (b.link_kind = 'reassigned_from')::int
    FROM reassignments JOIN linked b ON b.id = reassignments.before AND b.link_kind IN ('reassigned_from', 'revision_of')
)
SELECT min(activity_id::text)::uuid AS id FROM calls GROUP BY run_id HAVING count(*) > %(calls)s
UNION
SELECT parent_id FROM linked WHERE link_kind = 'subtask' GROUP BY parent_id HAVING count(*) > %(subtasks)s
UNION
SELECT id FROM tree WHERE depth > %(depth)s
UNION
SELECT root FROM tree GROUP BY root HAVING sum(is_subtask) >= %(tree)s
UNION
SELECT reassignments.successor FROM reassignments LEFT JOIN activities_activity b ON b.id = reassignments.before
WHERE reassignments.times > %(handed_on)s OR reassignments.agent_role = b.agent_role
UNION
SELECT min(activity_id::text)::uuid FROM calls WHERE effect IS NOT NULL GROUP BY effect
HAVING count(*) > 1 AND NOT bool_and(may_repeat)
UNION
SELECT calls.activity_id FROM calls LEFT JOIN activities_activity e ON e.id = calls.effect::uuid WHERE e.id IS NULL AND calls.effect IS NOT NULL
UNION
SELECT e.id FROM activities_activity e LEFT JOIN calls ON calls.effect = e.id::text AND calls.tool = %(tools)s::jsonb ->> e.link_kind
WHERE %(tools)s::jsonb ? e.link_kind AND calls.effect IS NULL

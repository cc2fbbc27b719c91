-- I25  What agents have asked for with tools stays within the limits, and each call has one effect.
-- Parameters  calls: of one run;  subtasks: of one activity;  depth: of subtasks in each other;  tree: activities of a tree of subtasks;
--             handed_on: how often work may have changed hands when an agent hands it on;  tools: by kind of link, which make it
-- Returns     id of each activity for which that is not so
-- The limits are today's: after one was lowered, what was asked for before looks like too much. People may add to a tree by revisions
-- and by handing work on, so of a tree only the subtasks are counted. A question about nothing of the own work has no effect.
-- A question to people that does not end its run, and repeats an open one, is answered with the open one: these have one effect together.
WITH RECURSIVE linked AS MATERIALIZED (
    SELECT id, parent_id, link_kind, agent_role FROM activities_activity
    WHERE link_kind IN ('subtask', 'revision_of', 'reassigned_from')
), tree AS (
    -- Every tree from its root, which is nobody's subtask and stands in for nothing.
    SELECT c.parent_id AS root, c.id, (c.link_kind = 'subtask')::int AS depth, (c.link_kind = 'subtask')::int AS is_subtask
    FROM linked c LEFT JOIN linked p ON p.id = c.parent_id WHERE p.id IS NULL
    UNION ALL
    SELECT tree.root, c.id, tree.depth + (c.link_kind = 'subtask')::int, (c.link_kind = 'subtask')::int
    FROM tree JOIN linked c ON c.parent_id = tree.id
), made AS (
    SELECT activity_id, run_id, tool, answer ->> 'id' AS effect,
           NOT (answer ->> 'stop')::boolean AND (tool = 'create_approval' OR arguments ->> 'human_role' IS NOT NULL) AS may_repeat
    FROM activities_toolcall
), hand AS (
    -- An agent's handing on, with everybody who has had the work before.
    SELECT h.id AS heir, h.agent_role, h.parent_id AS before, 1 AS times
    FROM made JOIN linked h ON h.id = made.effect::uuid WHERE made.tool = 'reassign_task'
    UNION ALL
    SELECT hand.heir, hand.agent_role, b.parent_id, hand.times + (b.link_kind = 'reassigned_from')::int
    FROM hand JOIN linked b ON b.id = hand.before AND b.link_kind IN ('reassigned_from', 'revision_of')
)
SELECT min(activity_id::text)::uuid AS id FROM made GROUP BY run_id HAVING count(*) > %(calls)s
UNION
SELECT parent_id FROM linked WHERE link_kind = 'subtask' GROUP BY parent_id HAVING count(*) > %(subtasks)s
UNION
SELECT id FROM tree WHERE depth > %(depth)s
UNION
SELECT root FROM tree GROUP BY root HAVING sum(is_subtask) >= %(tree)s
UNION
SELECT hand.heir FROM hand LEFT JOIN activities_activity b ON b.id = hand.before
WHERE hand.times > %(handed_on)s OR hand.agent_role = b.agent_role
UNION
SELECT min(activity_id::text)::uuid FROM made WHERE effect IS NOT NULL GROUP BY effect
HAVING count(*) > 1 AND NOT bool_and(may_repeat)
UNION
SELECT made.activity_id FROM made LEFT JOIN activities_activity e ON e.id = made.effect::uuid WHERE e.id IS NULL AND made.effect IS NOT NULL
UNION
SELECT e.id FROM activities_activity e LEFT JOIN made ON made.effect = e.id::text AND made.tool = %(tools)s::jsonb ->> e.link_kind
WHERE %(tools)s::jsonb ? e.link_kind AND made.effect IS NULL

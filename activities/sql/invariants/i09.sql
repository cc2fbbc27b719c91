-- I09  What awaits approval has exactly one open gate, and an open gate belongs to something that awaits approval.
-- Returns     id of each activity or gate for which that is not so
SELECT a.id FROM activities_activity a
WHERE a.status = 'awaiting_approval' AND 1 <> (
    SELECT count(*) FROM activities_activity g
    WHERE g.parent_id = a.id AND g.link_kind = 'gate' AND g.status IN ('created', 'in_progress'))
UNION
SELECT g.id FROM activities_activity g LEFT JOIN activities_activity a ON a.id = g.parent_id
WHERE g.link_kind = 'gate' AND g.status IN ('created', 'in_progress') AND a.status IS DISTINCT FROM 'awaiting_approval'

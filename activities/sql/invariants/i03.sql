-- I03  Statuses change along declared transitions only. A start from `created` is a claim and a start.
-- Parameters  verbs, sources (empty text: it came into being), targets: the table, one entry per allowed move
-- Returns     id of each activity with another move in its history
SELECT DISTINCT activity_id AS id FROM activities_activityevent
WHERE (verb, CASE WHEN verb = 'start' AND source = 'created' THEN 'assigned' ELSE coalesce(source, '') END, target) NOT IN (
    SELECT * FROM unnest(%(verbs)s::text[], %(sources)s::text[], %(targets)s::text[]))

-- I03  Statuses change along declared transitions only.
-- A start from `created` represents a claim and a start.
-- Parameters  verbs, sources (empty text: the activity is new), targets: the declared transitions (arrays of equal length)
-- Returns     id of each activity with another move in its history
SELECT DISTINCT activity_id AS id FROM activities_activityevent
WHERE (verb, CASE WHEN verb = 'start' AND source = 'created' THEN 'assigned' ELSE coalesce(source, '') END, target) NOT IN (
    SELECT * FROM unnest(%(verbs)s::text[], %(sources)s::text[], %(targets)s::text[]))

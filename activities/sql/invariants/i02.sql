-- I02  Runs of one activity never overlap.
-- Each run has ended when the next one begins.
-- Returns     id of each activity with two runs at once
-- A run starts when its claim reaches the server, which may be a moment before the claim gets the row. Hence the tolerance of one second.
-- All times are PostgreSQL's, so setting its clock back while an activity runs looks like an overlap.
SELECT DISTINCT activity_id AS id
FROM (
    SELECT activity_id, ended_at, lead(started_at) OVER (PARTITION BY activity_id ORDER BY fence) AS next_start
    FROM activities_activityrun
) run
WHERE next_start IS NOT NULL AND (ended_at IS NULL OR ended_at > next_start + interval '1 second')

-- I02  Runs of one activity never overlap: each has ended when the next begins.
-- Returns     id of each activity with two runs at once
-- A run's start is when its claim reached the server, which may be a moment before it got the row: hence the second.
-- Times are PostgreSQL's clock, so setting that clock back while an activity runs looks like an overlap.
SELECT DISTINCT activity_id AS id
FROM (
    SELECT activity_id, ended_at, lead(started_at) OVER (PARTITION BY activity_id ORDER BY fence) AS next_start
    FROM activities_activityrun
) run
WHERE next_start IS NOT NULL AND (ended_at IS NULL OR ended_at > next_start + interval '1 second')

-- The runs that hold a slot.
-- Returns     activity_id and grant of each
SELECT activity_id, "grant" FROM activities_activityrun WHERE status = 'running'

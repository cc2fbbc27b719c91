-- Drops all functions of events, and with them the triggers of `record.sql`.
DROP FUNCTION events_of_activities, events_of_pipeline_runs, events_of_firings, events_of_alerts, events_of_dead_letters,
    events_of_budgets CASCADE;
DROP FUNCTION events_note(uuid, text, uuid, uuid, jsonb);
DROP FUNCTION events_ring(uuid);

-- Marks steps as active, each with its activity: the first part of the statement that creates the activities (`submission.Beginning`). Also
-- starts the dependency time-outs of the steps after them, unless an earlier step has started them.
-- Parameters  tenant; runs (array of uuid), steps (array of text), activities (array of uuid): what starts;
--             waiting_runs (array of uuid), waiting (array of text), seconds (array of float): the time-outs
-- Returns     begun: activity (id) and round of each step that was pending. Of two activities for one step, only the one that the step gets.
-- Plan        rows are found by arrays of keys, not by joins alone: a plan made while the tables were small stays good.
begun AS (
    UPDATE pipelines_steprun s SET status = 'active', activity_id = w.activity, reason = '', waits_until = NULL
    FROM unnest(%(runs)s::uuid[], %(steps)s::text[], %(activities)s::uuid[]) AS w(run, step, activity)
    WHERE s.tenant_id = %(tenant)s AND s.run_id = ANY(%(runs)s::uuid[]) AND s.step = ANY(%(steps)s::text[]) AND s.branch = 0
      AND s.run_id = w.run AND s.step = w.step AND s.status = 'pending'
    RETURNING s.activity_id AS id, s.round
), waiting AS (
    UPDATE pipelines_steprun s SET waits_until = clock_timestamp() + make_interval(secs => w.seconds)
    FROM unnest(%(waiting_runs)s::uuid[], %(waiting)s::text[], %(seconds)s::float8[]) AS w(run, step, seconds)
    WHERE s.tenant_id = %(tenant)s AND s.run_id = ANY(%(waiting_runs)s::uuid[]) AND s.step = ANY(%(waiting)s::text[]) AND s.branch = 0
      AND s.run_id = w.run AND s.step = w.step AND s.status = 'pending' AND s.waits_until IS NULL
)

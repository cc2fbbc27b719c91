-- Deletes pipeline runs with their steps. Their activities are gone already.
-- Parameters  tenant, runs: locked by the caller
-- Returns     id of each run that is gone
DELETE FROM pipelines_pipelinerun WHERE tenant_id = %(tenant)s AND id = ANY(%(runs)s) RETURNING id

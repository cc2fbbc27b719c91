-- Deletes pipeline runs with their steps. Their activities are deleted already.
-- Parameters  tenant; runs: locked by the caller
-- Returns     id of each deleted run
DELETE FROM pipelines_pipelinerun WHERE tenant_id = %(tenant)s AND id = ANY(%(runs)s) RETURNING id

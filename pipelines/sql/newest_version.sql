-- Finds the version of a pipeline that new runs get.
-- Parameters  tenant, key
-- Returns     version, enabled; nothing if there is no such pipeline
-- Plan        each row is found by its key.
SELECT v.id AS version, p.enabled
FROM pipelines_pipeline p
CROSS JOIN LATERAL (
    SELECT w.id FROM pipelines_pipelineversion w WHERE w.tenant_id = %(tenant)s AND w.pipeline_id = p.id AND w.number = p.latest OFFSET 0
) v
WHERE p.tenant_id = %(tenant)s AND p.key = %(key)s

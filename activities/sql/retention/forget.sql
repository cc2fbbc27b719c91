-- Deletes activities with all rows that belong to them, and records their outputs, so that these are deleted from MongoDB afterwards.
-- Parameters  tenant; members: all activities of whole trees, locked by the caller
-- Returns     id of each deleted activity
WITH outputs AS (
    INSERT INTO tenants_forgottenoutput (id, tenant_id, activity_id)
    SELECT r.id, %(tenant)s, r.activity_id FROM activities_activityrun r
    WHERE r.tenant_id = %(tenant)s AND r.activity_id = ANY(%(members)s)
    UNION
    -- An edited output belongs to the activity behind the gate, and is that of the gate as well.
    (SELECT DISTINCT ON (a.output_ref) a.output_ref, %(tenant)s, a.id FROM activities_activity a
     WHERE a.tenant_id = %(tenant)s AND a.id = ANY(%(members)s) AND a.output_ref IS NOT NULL
       AND NOT EXISTS (SELECT FROM activities_activityrun r WHERE r.tenant_id = %(tenant)s AND r.id = a.output_ref)
     ORDER BY a.output_ref, a.link_kind IS NOT DISTINCT FROM 'gate')
    ON CONFLICT DO NOTHING
)
DELETE FROM activities_activity WHERE tenant_id = %(tenant)s AND id = ANY(%(members)s) RETURNING id

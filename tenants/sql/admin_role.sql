-- Creates the role of the admin. It has the rights of `orchestrator_app`, but only on rows of tenants that the request may see or change.
DO $$
BEGIN
    BEGIN
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'orchestrator_admin') THEN
            CREATE ROLE orchestrator_admin NOLOGIN NOSUPERUSER;
        END IF;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN
        NULL;  -- A migration of another database has just created it.
    END;
    BEGIN
        GRANT orchestrator_admin TO CURRENT_USER;
    EXCEPTION WHEN OTHERS THEN
        IF NOT pg_has_role(session_user, 'orchestrator_admin', 'MEMBER') THEN
            RAISE EXCEPTION 'The login of DATABASE_URL is no member of orchestrator_admin. As a superuser run: GRANT orchestrator_admin TO %', session_user;
        END IF;
    END;
    BEGIN
        GRANT orchestrator_app TO orchestrator_admin;  -- rights that later migrations revoke are thus revoked here too
    EXCEPTION WHEN OTHERS THEN
        IF NOT pg_has_role('orchestrator_admin', 'orchestrator_app', 'USAGE') THEN
            RAISE EXCEPTION 'As a superuser run: GRANT orchestrator_app TO orchestrator_admin';
        END IF;
    END;
END $$;

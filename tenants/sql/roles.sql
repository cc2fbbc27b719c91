-- Creates the roles that processes use. The login of DATABASE_URL owns the tables and switches to one of the roles when it connects.
-- Roles belong to the server, not to a database, so migrations of several databases may run this at the same time.
DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['orchestrator_app', 'orchestrator_system'] LOOP
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
                EXECUTE format('CREATE ROLE %I NOLOGIN NOSUPERUSER', wanted);
            END IF;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;  -- A migration of another database has just created it.
        END;
        IF NOT pg_has_role(session_user, wanted, 'MEMBER')
           OR NOT EXISTS (SELECT FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.roleid
                          WHERE r.rolname = wanted AND m.member = (SELECT oid FROM pg_roles WHERE rolname = session_user)) THEN
            BEGIN
                EXECUTE format('GRANT %I TO %I', wanted, session_user);
            EXCEPTION WHEN OTHERS THEN
                IF NOT pg_has_role(session_user, wanted, 'MEMBER') THEN
                    RAISE;
                END IF;
            END;
        END IF;
    END LOOP;
    IF NOT (SELECT rolbypassrls FROM pg_roles WHERE rolname = 'orchestrator_system') THEN
        BEGIN
            ALTER ROLE orchestrator_system BYPASSRLS;
        EXCEPTION WHEN OTHERS THEN
            IF NOT (SELECT rolbypassrls FROM pg_roles WHERE rolname = 'orchestrator_system') THEN
                RAISE EXCEPTION 'The login of DATABASE_URL may not create a role that bypasses row-level security. '
                    'As a superuser run: CREATE ROLE orchestrator_system NOLOGIN BYPASSRLS; GRANT orchestrator_system TO %', session_user;
            END IF;
        END;
    END IF;
END $$;

-- The role of the admin has the rights of `orchestrator_app`, but only on rows of tenants that the request may see or change.
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

GRANT USAGE ON SCHEMA public TO orchestrator_app, orchestrator_system;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO orchestrator_app, orchestrator_system;
GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO orchestrator_app, orchestrator_system;
-- For the tables of later migrations. No role gets TRUNCATE, because row-level security does not cover it.
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO orchestrator_app, orchestrator_system;
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT USAGE, SELECT ON SEQUENCES TO orchestrator_app, orchestrator_system;

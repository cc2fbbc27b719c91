#!/bin/sh
# Separate logins, none of them a superuser: the owner of the tables, for migrations alone; one for the work of tenants, which cannot
# become the role that sees all of them; one for that role. The image of PostgreSQL runs this when it makes the database; it may be run again.
# Passwords come from the environment and stand in no command line.
set -eu
psql --quiet -v ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<'SQL'
\getenv owner POSTGRES_OWNER_PASSWORD
\getenv app POSTGRES_APP_PASSWORD
\getenv system POSTGRES_SYSTEM_PASSWORD

SELECT format('CREATE ROLE %I NOLOGIN', name)
FROM unnest(ARRAY['orchestrator_app', 'orchestrator_system', 'orchestrator_admin']) name
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) \gexec
SELECT format('CREATE ROLE %I', name)
FROM unnest(ARRAY['orchestrator_owner', 'orchestrator_app_login', 'orchestrator_system_login']) name
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) \gexec

ALTER ROLE orchestrator_system BYPASSRLS;
GRANT orchestrator_app TO orchestrator_admin;

-- It owns the tables and could switch their policies off; functions that run with its rights keep the books of all tenants.
ALTER ROLE orchestrator_owner LOGIN NOSUPERUSER NOCREATEROLE NOCREATEDB BYPASSRLS PASSWORD :'owner';
GRANT orchestrator_app, orchestrator_system, orchestrator_admin TO orchestrator_owner WITH ADMIN OPTION;
-- NOINHERIT: a connection that did not choose its role may do nothing.
ALTER ROLE orchestrator_app_login LOGIN NOSUPERUSER NOCREATEROLE NOCREATEDB NOBYPASSRLS NOINHERIT PASSWORD :'app';
GRANT orchestrator_app, orchestrator_admin TO orchestrator_app_login WITH INHERIT FALSE, SET TRUE;
ALTER ROLE orchestrator_system_login LOGIN NOSUPERUSER NOCREATEROLE NOCREATEDB NOBYPASSRLS NOINHERIT PASSWORD :'system';
GRANT orchestrator_system TO orchestrator_system_login WITH INHERIT FALSE, SET TRUE;

REVOKE ALL ON DATABASE :DBNAME FROM PUBLIC;
GRANT CONNECT ON DATABASE :DBNAME TO orchestrator_app_login, orchestrator_system_login;
ALTER DATABASE :DBNAME OWNER TO orchestrator_owner;
ALTER SCHEMA public OWNER TO orchestrator_owner;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
SQL

"""The database's own copy of the state table: a trigger that refuses an undeclared change of status.

Code asks `transitions` for a verb; this guard is for everything that might not, such as a shell or a future mistake.
"""

from __future__ import annotations

from activities import states

TABLE = "activities_activity"


def install_sql() -> list[str]:
    """Statements that make the trigger compare with `states.TRANSITIONS`. Run them again whenever the table changes."""
    allowed = ", ".join(f"'{source}>{target}'" for source, target in sorted(states.pairs()))
    return [
        f"""CREATE OR REPLACE FUNCTION {TABLE}_status_guard() RETURNS trigger LANGUAGE plpgsql AS $guard$
        BEGIN
            IF (OLD.status || '>' || NEW.status) NOT IN ({allowed}) THEN
                RAISE EXCEPTION 'activity % may not go from % to %', OLD.id, OLD.status, NEW.status
                    USING ERRCODE = 'check_violation';
            END IF;
            RETURN NEW;
        END $guard$""",
        f"DROP TRIGGER IF EXISTS status_guard ON {TABLE}",
        f"""CREATE TRIGGER status_guard BEFORE UPDATE OF status ON {TABLE}
        FOR EACH ROW WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION {TABLE}_status_guard()""",
    ]


REMOVE_SQL = [
    f"DROP TRIGGER IF EXISTS status_guard ON {TABLE}",
    f"DROP FUNCTION IF EXISTS {TABLE}_status_guard()",
]

"""Lets time pass without waiting: moves every stored moment into the past."""

from __future__ import annotations

from django.db import connections

from tenants.context import OWNER

# Workers, the leader and tokens stay alive. Moments in a far future mean "never".
_COLUMNS = """
    SELECT c.table_name, array_agg(c.column_name::text)
    FROM information_schema.columns c
    JOIN pg_class k ON k.relname = c.table_name AND k.relkind IN ('r', 'p') AND NOT k.relispartition
    WHERE c.table_schema = 'public' AND c.data_type = 'timestamp with time zone'
      AND c.table_name ~ '^(activities|agents|approval|pipelines|tenants)_'
      AND c.table_name !~ '(workerprocess|leaderlease|systemjob|apitoken)'
    GROUP BY 1
"""
# A time may move to the place of another one, so all of them move out of the way first.
_UNIQUE_TIMES = {"pipelines_firing", "pipelines_scheduleexecution"}
_TWICE = ("- interval '{seconds} seconds' - interval '100 years'", "+ interval '100 years'")
_RETRY_TIMES = """
    UPDATE activities_activityevent
    SET detail = jsonb_set(detail, '{due_at}', to_jsonb((detail ->> 'due_at')::timestamptz - interval '%(seconds)s seconds'))
    WHERE detail ->> 'due_at' < '5000'
"""


def pass_time(seconds: int) -> None:
    """Move all moments of all tenants by so many seconds. Redis must be rebuilt afterwards."""
    with connections[OWNER].cursor() as cursor:
        cursor.execute(_COLUMNS)
        tables = cursor.fetchall()
        cursor.execute(
            "BEGIN; SET LOCAL session_replication_role = replica"
        )  # no trigger takes this for a change
        try:
            for table, columns in tables:
                for interval in _TWICE if table in _UNIQUE_TIMES else ("- interval '{seconds} seconds'",):
                    change = interval.format(seconds=seconds)
                    values = (
                        f"{each} = CASE WHEN {each} < '5000-01-01' THEN {each} {change} ELSE {each} END"
                        for each in (f'"{column}"' for column in columns)
                    )
                    cursor.execute(f'UPDATE "{table}" SET {", ".join(values)}')
            cursor.execute(_RETRY_TIMES % {"seconds": seconds})
        except BaseException:
            cursor.execute("ROLLBACK")
            raise
        cursor.execute("COMMIT")

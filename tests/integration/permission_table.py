"""The table of permissions, written by hand in `tests/permissions.txt`.

`python -m tests.integration.permission_table` writes the page of the documentation from it.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TABLE, PAGE = ROOT / "tests" / "permissions.txt", ROOT / "docs" / "permissions.md"
ROLES = ("viewer", "reviewer", "operator", "admin")
INTRODUCTION = """# Permissions

The lowest role that may use each operation of the HTTP API. Each role includes the next one: admin, operator, reviewer, viewer. *platform*
needs a token or a session of a platform admin; *run* needs the token of that agent's run. Scopes of a token only restrict it further.

A request without the role is answered 403 with `required_role`, and leaves an entry in the [audit trail](audit.md). For rows of another
tenant the answer is 404. A changed role, an ended membership and a revoked token take effect within a second on all processes.

A token may belong to a person, a member of its tenant: the one who creates it in the console or the admin, or `--user` of `manage.py
create_token`. Its questions and decisions count as that person's, so all tokens and the session of a person have one vote. If several
people must agree, or the person who asks must not decide (`self_approval` is off), a token without a person is answered 403 with the code
`person_required`. All other decisions it can make.

A token never has more rights than its person. If their role is lowered, it acts with the lower role; if they are no longer a member, it is
answered 401. So programs that must not depend on a person use tokens of `manage.py create_token` without `--user`.

| operation | role |
| --- | --- |
"""


def permissions() -> dict[tuple[str, str], str]:
    """`{(method, path): role}`."""
    lines = [
        line for line in TABLE.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")
    ]
    return {(method, path): role for method, path, role in map(str.split, lines)}


def page() -> str:
    return INTRODUCTION + "".join(
        f"| `{method} {path}` | {role} |\n" for (method, path), role in permissions().items()
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

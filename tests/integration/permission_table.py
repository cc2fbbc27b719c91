"""The table of who may do what. `tests/permissions.txt` is written by hand; `python -m tests.integration.permission_table` makes the
page of docs from it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TABLE, PAGE = ROOT / "tests" / "permissions.txt", ROOT / "docs" / "permissions.md"
ROLES = ("viewer", "reviewer", "operator", "admin")
INTRODUCTION = """# Permissions

Who may do what with the HTTP API: the lowest role that may. An admin may what an operator may, an operator what a reviewer may, a
reviewer what a viewer may. *platform* needs a token or a session of a platform admin, *run* the token of that agent's run and nothing
else. Scopes of a token only ever take away. Anyone who may not is answered 403 with `required_role`, and leaves an entry in the [audit
trail](audit.md); what belongs to another tenant is answered 404. A role that changes, a membership that ends and a token that is
revoked act on the next request, within a second on all processes.

A token may have a person behind it, a member of its tenant: anyone who makes it in the console or the admin, or `--user` of `manage.py
create_token`. What it asks and decides is theirs, so all their tokens and their session are one voice. Where several must agree, or where
who asks has no say (`self_approval` off), a token that nobody stands behind is answered 403 with the code `person_required`; what takes
one decision it decides like anybody. So does a token whose person is no member any more: it goes on to work, without a vote.

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

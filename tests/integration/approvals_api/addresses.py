"""Where approvals and the inbox are."""

from __future__ import annotations

APPROVALS, INBOX = "/api/v1/approvals/", "/api/v1/inbox/"

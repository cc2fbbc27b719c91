"""Addresses of approvals and the inbox."""

from __future__ import annotations

APPROVALS, INBOX = "/api/v1/approvals/", "/api/v1/inbox/"

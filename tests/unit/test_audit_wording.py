"""The page of the audit trail describes an operation in a word and links to its object."""

from __future__ import annotations

import pytest

from console import audit

RUN = "01a201eb-d118-7cbf-a0e5-f6579dd697f6"


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        ("POST /activities/", "created"),
        ("POST /queues/{role}/pause/", "pause"),
        ("POST /notification-channels/{id}/renew-secret/", "renew secret"),
        ("PUT /agent-configs/{role}/", "changed"),
        ("DELETE /webhooks/{id}/", "removed"),
        ("login.succeeded", "login succeeded"),
    ],
)
def test_an_operation_is_described_in_a_word(operation: str, words: str) -> None:
    assert audit.in_words(operation) == words


@pytest.mark.parametrize(
    ("kind", "object_id", "address"),
    [
        ("pipeline-runs", RUN, f"/runs/{RUN}/"),
        ("queues", "dev", "/queues/dev/"),
        ("queues", "../login", ""),
        ("activities", "no id", ""),
        ("activities", "", ""),
        ("webhooks", RUN, ""),
    ],
)
def test_an_object_with_a_page_has_a_link(kind: str, object_id: str, address: str) -> None:
    assert audit.address_of(kind, object_id) == address

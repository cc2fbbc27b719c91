"""Flower without a login listens on loopback, unless an option or the environment says otherwise."""

from __future__ import annotations

import pytest

from orchestrator.flower_auth import stay_on_loopback

LOOPBACK = {"FLOWER_ADDRESS": "127.0.0.1"}


@pytest.mark.parametrize(
    ("options", "environment", "added"),
    [
        ("", {}, LOOPBACK),
        ("--port=5556", {"FLOWER_BASIC_AUTH": ""}, LOOPBACK),
        ("", {"FLOWER_BASIC_AUTH": "anna:secret"}, {}),
        ("--basic_auth=anna:secret", {}, {}),
        ("--basic-auth anna:secret", {}, {}),
        ("", {"FLOWER_ADDRESS": "10.0.0.1"}, {}),
    ],
)
def test_flower_without_a_login_stays_on_loopback(
    options: str, environment: dict[str, str], added: dict[str, str]
) -> None:
    process = dict(environment)

    stay_on_loopback(["celery", "-A", "orchestrator", "flower", *options.split()], process)

    assert process == {**environment, **added}

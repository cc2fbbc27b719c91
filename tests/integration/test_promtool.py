"""Prometheus itself reads what we hand it: rules, configuration and a scrape; and each alert fires when it should, and otherwise not."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest
import yaml
from django.test import Client

from tenants.models import Tenant
from tests.architecture import tree
from tests.counting import count_all
from tests.engine import Engine

FOLDER = tree.ROOT / "deploy" / "prometheus"
PROMTOOL = shutil.which("promtool")

needs_promtool = pytest.mark.skipif(
    PROMTOOL is None,
    reason="promtool is not installed: `apt install prometheus`, or unpack Prometheus and put it on the PATH",
)


def promtool(*arguments: str, given: str = "") -> str:
    """Everything that promtool said; fails when it found something."""
    told = subprocess.run(
        [str(PROMTOOL), *arguments], input=given, cwd=FOLDER, capture_output=True, text=True, timeout=60
    )
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout + told.stderr


def _read(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return document


@needs_promtool
def test_prometheus_accepts_its_configuration_with_every_rule() -> None:
    rules = [rule for group in _read("alerts.yml")["groups"] for rule in group["rules"]]

    told = promtool("check", "config", "prometheus.yml")

    assert f"SUCCESS: {len(rules)} rules found" in told


@needs_promtool
def test_every_alert_fires_when_it_should_and_otherwise_not() -> None:
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml")


def test_every_alert_is_tried_both_ways() -> None:
    tried = [case for group in _read("alerts_test.yml")["tests"] for case in group["alert_rule_test"]]
    alerts = {rule["alert"] for group in _read("alerts.yml")["groups"] for rule in group["rules"]}

    assert {case["alertname"] for case in tried if case.get("exp_alerts")} == alerts
    assert {case["alertname"] for case in tried if not case.get("exp_alerts")} == alerts


@needs_promtool
def test_prometheus_finds_no_fault_with_a_scrape(engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    engine.submit(tenant, count=2)
    engine.drain()
    count_all()

    scrape = Client().get("/metrics").content.decode()

    assert "orchestrator_queue_wait_seconds_bucket" in scrape
    assert promtool("check", "metrics", given=scrape) == ""

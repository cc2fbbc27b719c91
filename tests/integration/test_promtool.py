"""Prometheus accepts our rules, configuration and metrics, and every alert fires when it should and not otherwise."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest
import yaml
from django.test import Client

from tenants.models import Tenant
from tests.architecture import tree
from tests.engine import Engine
from tests.metrics import count_all

FOLDER = tree.ROOT / "deploy" / "prometheus"
PROMTOOL = shutil.which("promtool")

needs_promtool = pytest.mark.skipif(
    PROMTOOL is None,
    reason="promtool is not installed: `apt install prometheus`, or unpack Prometheus and put it on the PATH",
)


def promtool(*arguments: str, stdin: str = "") -> str:
    """Run promtool; return its output, and fail if it reports an error."""
    output = subprocess.run(
        [str(PROMTOOL), *arguments], input=stdin, cwd=FOLDER, capture_output=True, text=True, timeout=60
    )
    assert output.returncode == 0, output.stdout + output.stderr
    return output.stdout + output.stderr


def _read(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return document


@needs_promtool
def test_prometheus_accepts_its_configuration_with_every_rule() -> None:
    rules = [rule for group in _read("alerts.yml")["groups"] for rule in group["rules"]]

    output = promtool("check", "config", "prometheus.yml")

    assert f"SUCCESS: {len(rules)} rules found" in output


@needs_promtool
def test_every_alert_fires_when_it_should_and_not_otherwise() -> None:
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml")


def test_every_alert_is_tested_firing_and_not_firing() -> None:
    cases = [case for group in _read("alerts_test.yml")["tests"] for case in group["alert_rule_test"]]
    alerts = {rule["alert"] for group in _read("alerts.yml")["groups"] for rule in group["rules"]}

    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == alerts
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == alerts


@needs_promtool
def test_prometheus_accepts_the_metrics_of_a_scrape(engine: Engine, tenant: Tenant) -> None:
    engine.serve(tenant)
    engine.submit(tenant, count=2)
    engine.drain()
    count_all()

    scrape = Client().get("/metrics").content.decode()

    assert "orchestrator_queue_wait_seconds_bucket" in scrape
    assert promtool("check", "metrics", stdin=scrape) == ""

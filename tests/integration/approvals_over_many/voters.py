"""Voters of these tests."""

from __future__ import annotations

from activities.decision_rules import Voter


def voter(name: str) -> Voter:
    return Voter(name, identity=f"user:{name}")

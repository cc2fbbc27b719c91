"""Changing the settings: one row, whose version counts the changes and which remembers who made the last one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from django.db import transaction
from django.db.models.functions import Now

from agents.models import PlatformConfig
from agents.scheduler_settings import values
from agents.scheduler_settings.keys import KEYS
from agents.scheduler_settings.reading import Tree, put, read
from agents.scheduler_settings.values import KEY, member
from tenants.context import current_alias

logger = logging.getLogger(__name__)


class VersionConflict(Exception):
    """The settings were changed since they were read."""

    code: ClassVar[str] = "precondition_failed"
    status: ClassVar[int] = 412


def row() -> PlatformConfig:
    """The row as it is; one that was never saved has version 0, and was changed by nobody at no time."""
    found: PlatformConfig | None = PlatformConfig.objects.filter(key=KEY).first()
    never: Any = None
    return found or PlatformConfig(key=KEY, value={}, version=0, updated_at=never)


def save(given: Any, *, actor: str, expected_version: int | None = None) -> PlatformConfig:
    """Replace all settings; what is left out has its default. Raises `SettingsInvalid` and `VersionConflict`."""
    wanted = read(given)
    with transaction.atomic(using=current_alias()):
        found = _locked()
        if expected_version is not None and found.version != expected_version:
            raise VersionConflict(
                f"The settings are at version {found.version}. Read them again and decide anew."
            )
        return _written(found, wanted, actor)


def change(members: Mapping[str, Any], *, actor: str) -> PlatformConfig:
    """Set single keys by their paths in our spelling, or with None take them back to their defaults. Raises `SettingsInvalid`."""
    with transaction.atomic(using=current_alias()):
        found = _locked()
        flat = {key.path: member(found.value, key.parts) for key in KEYS} | dict(members)
        wanted: Tree = {}
        for path, value in flat.items():
            if value is not None:
                put(wanted, path.split("."), value)
        return _written(found, read(wanted), actor)


def _locked() -> PlatformConfig:
    # Made first, so that two who save for the first time wait for each other as well.
    PlatformConfig.objects.get_or_create(key=KEY, defaults={"version": 0})
    return PlatformConfig.objects.select_for_update().get(key=KEY)


def _written(found: PlatformConfig, wanted: Tree, actor: str) -> PlatformConfig:
    changed = [key.path for key in KEYS if member(found.value, key.parts) != member(wanted, key.parts)]
    if changed or not found.version:
        PlatformConfig.objects.filter(key=KEY).update(
            value=wanted, version=found.version + 1, updated_by=actor[:200], updated_at=Now()
        )
        facts = {"action": "platform_settings_changed", "actor": actor, "keys": changed}
        logger.info("Settings of scheduling changed", extra=facts)
        found.refresh_from_db()
    values.forget()
    return found

"""The settings of scheduling that hold for the whole platform: the row `scheduler` of `PlatformConfig` over the defaults.

`current()` is what holds now, in any process, at most a second old. `save` and `change` are the only ways to change it; they take the
nested form of the platform's specification, in its own spelling (`httpClient.connectionPool.maxSockets`) or in ours
(`http_client.connection_pool.max_sockets`), and keep ours.
"""

from agents.scheduler_settings.keys import KEYS, Key
from agents.scheduler_settings.reading import SettingsInvalid, nested, read
from agents.scheduler_settings.saving import VersionConflict, change, row, save
from agents.scheduler_settings.values import KEY, SchedulerSettings, current, forget, settings_of

__all__ = (
    "KEY",
    "KEYS",
    "Key",
    "SchedulerSettings",
    "SettingsInvalid",
    "VersionConflict",
    "change",
    "current",
    "forget",
    "nested",
    "read",
    "row",
    "save",
    "settings_of",
)

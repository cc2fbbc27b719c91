"""The governor's Lua scripts, one per verb."""

from __future__ import annotations

from pathlib import Path

from tenants.limiter.scripts import Script

_FOLDER = Path(__file__).resolve().parent / "lua"

ASK, TELL, LOOK = (Script.load(_FOLDER, name) for name in ("ask", "tell", "look"))

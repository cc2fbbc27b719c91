"""The theme of the admin."""

from __future__ import annotations

import os

from django.templatetags.static import static

# URL of the links to Flower. On one machine the local one; in production that of its proxy, or no link.
ORCHESTRATOR_FLOWER_URL = os.environ.get(
    "FLOWER_URL",
    ""
    if os.environ.get("ORCHESTRATOR_PUBLIC_URL")
    else f"http://127.0.0.1:{os.environ.get('FLOWER_PORT') or 5555}",
)

FORMAT_MODULE_PATH = "orchestrator.formats"


_BLUE = {
    "50": "#eef4ff",
    "100": "#dce8ff",
    "200": "#bcd3ff",
    "300": "#93b8ff",
    "400": "#79a8ff",
    "500": "#4a7fe6",
    "600": "#1f57c3",
    "700": "#1a49a5",
    "800": "#183e86",
    "900": "#18366f",
    "950": "#112246",
}


UNFOLD = {
    "SITE_TITLE": "Orchestrator",
    "SITE_HEADER": "Orchestrator",
    "SITE_SUBHEADER": "Platform administration",
    "SITE_URL": "/",
    "SITE_ICON": lambda request: static("console/icon.svg"),
    "SITE_FAVICONS": [
        {"rel": "icon", "type": "image/svg+xml", "href": lambda request: static("console/icon.svg")}
    ],
    "SHOW_HISTORY": True,
    "DASHBOARD_CALLBACK": "console.overview.fill",
    "SHOW_VIEW_ON_SITE": False,
    "BORDER_RADIUS": "6px",
    "STYLES": [lambda request: static("console/admin.css")],
    # The blue of the console.
    "COLORS": {"primary": _BLUE},
    "SIDEBAR": {
        "show_search": True,
        "show_all_applications": False,
    },
}

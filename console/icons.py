"""Small pictures beside the words of the menu. They repeat what the words say, so nobody needs to see them."""

from __future__ import annotations

#: By the name of a page: strokes on a square of 24, drawn in the colour of the words.
STROKES = {
    "home": "M4 14a8 8 0 0 1 16 0M12 14l3.5-4M4 18.5h16",
    "inbox": "M4 13 6.5 5h11L20 13v6H4ZM4 13h5l1 2.5h4l1-2.5h5",
    "activities": "m4 6.5 1.3 1.3 2.5-2.6M4 13l1.3 1.3 2.5-2.6M11 6.5h9M11 13h9M11 19h9M5 19h1.5",
    "runs": "M3 12a2 2 0 1 0 4 0 2 2 0 1 0-4 0M17 6a2 2 0 1 0 4 0 2 2 0 1 0-4 0M17 18a2 2 0 1 0 4 0 2 2 0 1 0-4 0"
    "M7 12h2.5C13 12 12 6 15 6h2M9.5 12c3.5 0 2.5 6 5.5 6h2",
    "queues": "M4 6h16M4 10.7h16M4 15.3h11M4 20h6",
    "dead_letters": "M6 20v-9a6 6 0 0 1 12 0v9M4 20h16M9.5 11h5M12 8.5v6",
    "schedules": "M5 6h14v14H5ZM5 10.5h14M9 3.5v4M15 3.5v4",
    "agents": "M6 9h12v10H6ZM12 9V5M9.5 13v1.5M14.5 13v1.5M3.5 13v3M20.5 13v3",
    "usage": "M4 20h16M7 16v-5M12 16V6M17 16V9",
    "audit": "m12 3.5 7 2.5v5.5c0 4.5-3 7.5-7 9-4-1.5-7-4.5-7-9V6Zm-3 8.5 2.2 2.2 4.1-4.2",
    "settings": "M4 7h8.5M17.5 7H20M15 4.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5ZM4 17h2.5M11.5 17H20"
    "M9 14.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5Z",
    "admin": "M8 11a4 4 0 1 0 0 8 4 4 0 0 0 0-8ZM11 12.2 19.5 4M16 7.5l3 3M13.5 10l2 2",
    "api": "m9 7-5 5 5 5M15 7l5 5-5 5",
    "flower": "M12 9.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5ZM12 3.5v3M12 17.5v3M3.5 12h3M17.5 12h3"
    "M6 6l2 2M16 16l2 2M18 6l-2 2M8 16l-2 2",
}

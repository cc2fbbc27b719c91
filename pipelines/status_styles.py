"""How steps look in the picture of a pipeline: tones, glyphs and words for each status, and the style in light and dark.

No state is told by its tone alone: each has a glyph and words of its own.
"""

from __future__ import annotations

import re

from activities.states import STATUSES

TONES = ("bad", "ask", "live", "idle", "good", "off")  # what a person should see first comes first
LOOKS = {  # status of a step or of its activity: tone, glyph, words
    "pending": ("idle", "", "Waiting"),
    "active": ("live", "play", "Running"),
    "skipped": ("off", "skip", "Skipped"),
    "condition_unmet": ("off", "fork", "Condition not met"),
    **{str(status): (spec.tone, spec.glyph, spec.words) for status, spec in STATUSES.items()},
}
GLYPHS = {  # strokes around (0, 0)
    "rhombus": "M-12 0 0-12 12 0 0 12Z",
    "dots": "M-3.2 0h.01M0 0h.01M3.2 0h.01",
    "play": "M-1.7-2.8 3 0-1.7 2.8Z",
    "pause": "M-1.8-2.5V2.5M1.8-2.5V2.5",
    "bar": "M-3 0H3",
    "check": "M-3.1.2-1 2.4 3.2-2.3",
    "back": "M3 2.4V-.6H-3M-.9-2.7-3-.6-.9 1.5",
    "cross": "M-2.4-2.4 2.4 2.4M2.4-2.4-2.4 2.4",
    "bang": "M0-3.3V.6M0 3.1V3.2",
    "skip": "M-3.2-2.4-.6 0-3.2 2.4M.8-2.4 3.4 0 .8 2.4",
    "slash": "M-2.5 2.5 2.5-2.5",
    "fork": "M-3.4 0H-.8L2.8-2.6M-.8 0 .6 1M1.8 1.8 2.8 2.6",
    "agent": "M-5-1.5a2 2 0 0 1 2-2H3a2 2 0 0 1 2 2V3a2 2 0 0 1-2 2H-3a2 2 0 0 1-2-2ZM0-4V-5M-2 0v1M2 0v1",
    "person": "M0-.8a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5ZM-4.6 5c0-2.8 2-4 4.6-4s4.6 1.2 4.6 4",
    "template": "M-4-5H1L4-2V5H-4ZM1-5V-2H4",
}
LIGHT = (
    "color-scheme:light;--canvas:#f7f8fa;--card:#fff;--line:#b9c0cc;--ink:#1b2230;--mute:#59627a;--edge:#a3abba;"
    "--idle:#5f6880;--idle-tint:#fff;--live:#1f57c3;--live-tint:#eef4ff;--ask:#8a5500;--ask-tint:#fff6e3;"
    "--good:#17713f;--good-tint:#eefaf2;--bad:#b51f31;--bad-tint:#fff0f0;--off:#5d6579;--off-tint:#f1f2f5"
)
DARK = (
    "color-scheme:dark;--canvas:#11151d;--card:#1a202b;--line:#434c5e;--ink:#e8ecf4;--mute:#a1abc0;--edge:#566177;"
    "--idle:#a1abc0;--idle-tint:#1a202b;--live:#79a8ff;--live-tint:#172440;--ask:#f0b64b;--ask-tint:#2e2411;"
    "--good:#5fce8f;--good-tint:#12291d;--bad:#ff7d85;--bad-tint:#351a20;--off:#8d96aa;--off-tint:#161b24"
)
_RULES = """
.plan{--tone:var(--line);--tint:var(--card)} .canvas{fill:var(--canvas)}
.box{fill:var(--tint);stroke:var(--tone);stroke-width:1.5} .off .box{stroke-dasharray:4 3}
.name{fill:var(--ink);font-size:13px;font-weight:600} .role,.more{fill:var(--mute)}
.state{fill:var(--tone);font-weight:600} .part,.disc{fill:var(--tone)}
.idle .disc{fill:none;stroke:var(--tone);stroke-width:1.5} .idle .glyph{stroke:var(--tone)}
.glyph{fill:none;stroke:var(--tint);stroke-width:1.7;stroke-linecap:round;stroke-linejoin:round}
.sign{fill:none;stroke:var(--mute);stroke-width:1.3;stroke-linecap:round;stroke-linejoin:round}
.gate{fill:var(--card);stroke:var(--ask);stroke-width:1.5} .gate+.glyph{stroke:var(--ask)}
.good .gate{fill:var(--good);stroke:var(--good)} .good .gate+.glyph{stroke:var(--tint)}
.pill{fill:var(--card);stroke:var(--tone)} .tag{fill:var(--mute);font:600 10px system-ui;text-anchor:middle}
.edge{fill:none;stroke:var(--edge);stroke-width:1.5} .edge.off{stroke-dasharray:5 4} .head{fill:var(--edge)}
.edge.good,.edge.bad{stroke:var(--tone);stroke-width:2} .edge.bad{stroke-dasharray:2 4}
.head.good,.head.bad{fill:var(--tone)} a:hover .box,a:focus-visible .box{stroke-width:3} a:focus{outline:none}
"""
_SCOPED = re.sub(r"(?m)(^|,|\} )(?=[.a])", r"\1.pipeline-picture ", _RULES.strip()).replace("\n", "")
_TONED = "".join(f".pipeline-picture .{t}{{--tone:var(--{t});--tint:var(--{t}-tint)}}" for t in TONES)
#: All but the colours, for pages that have them by the same names.
RULES = f"{_TONED}{_SCOPED}"
STYLE = (
    f".pipeline-picture{{{LIGHT};font:11.5px system-ui,sans-serif}}.pipeline-picture.dark{{{DARK}}}"
    f"@media(prefers-color-scheme:dark){{.pipeline-picture{{{DARK}}}}}{RULES}"
)

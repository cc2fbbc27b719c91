"""Patterns of reviewers' requests. The first pattern that matches a clause decides.

Each pattern has a name, by which `revisions` finds its function. Order matters: "don't add a section about cost"
has to be recognised as a removal before anything looks for "add a section".
"""

from __future__ import annotations

import re


def _any(*phrases: str) -> str:
    return f"(?:{'|'.join(phrases)})"


_FILLERS = _any("please", "kindly", "can you", "could you", "and", "but", "also", "then")
_SETTING = _any(
    "change", "set", "make", "use", "give it", "the", "a", "new", "its", "our", "target", "intended"
)
_OPENING = f"^(?:{_any(_FILLERS, _SETTING)} )*"
_IS = r"\s*" + _any(
    ":", "=", "->", "(?:should|must|could|has to|needs to) (?:be|read)", "to", "into", "is", "are"
)
_TOPIC = r"(?P<topic>.+)"
_MAYBE_TOPIC = r"(?P<topic>.*)"

_PART = _any("sections?", "chapters?", "parts?", "paragraphs?", "headings?")
_ABOUT = _any(
    *("about", "on", "covering", "for", "regarding", "describing", "explaining"),
    *("that (?:explains|covers)", "called", "titled", "named", ":"),
)
_ADD = _any(
    "add", "include", "insert", "write", "needs?", "want", "miss(?:es|ing)?", "lacks?", "give (?:it|us|me)"
)
_ONE_MORE = _any("a", "an", "one", "another", "more", "new", "extra", "short", "separate")
_SAY = _any("mention", "cover", "include", "say (?:anything |enough )?about", "explain", "discuss")
_MENTION = _any(
    *(
        "mention",
        "refer to",
        "talk about",
        "say something about",
        "bring up",
        "point out",
        "include",
        "cover",
    ),
    *(
        "discuss",
        "explain",
        "name",
        "add",
        "miss(?:es|ing)",
        "lacks?",
        "forgot",
        "nothing about",
        "what about",
    ),
)
_FAILS_TO = _any("does not", "doesn't", "did not", "didn't", "fails to", "forgets? to")
_DO_NOT = _any("do not", "don't", "never", "no need (?:to|for)", "without", "avoid", "stop")
_SAYING = _any(
    *("mention(?:ing)?", "includ(?:e|ing)", "cover(?:ing)?", "talk(?:ing)? about", "discuss(?:ing)?"),
    *("nam(?:e|ing)", "us(?:e|ing)", "writ(?:e|ing) about"),
)
_REMOVE = _any(
    "remove", "drop", "delete", "omit", "skip", "cut", "strike", "leave out", "take out", "get rid of"
)

_WORDS = r"(?P<number>\d[\d.,]{0,8})[\s-]*words?\b"
_IT = _any("it", "this", "them", "the (?:article|brief|text)")
_REDUCE_TO = (
    f"{_any('limit', 'cut', 'reduce', 'shorten', 'trim', 'cap', 'keep')}(?: {_IT})?(?: down)? (?:to|at)"
)
_AT_MOST = _any(
    *(r"max(?:imum)?\.?(?: of)?", "at most", "(?:no|not) more than", "not (?:to )?exceed(?:ing)?", "up to"),
    *("under", "below", "within", "fewer than", "less than", _REDUCE_TO),
)
_AT_LEAST = _any(
    "at least", r"min(?:imum)?\.?(?: of)?", "(?:no|not) (?:less|fewer) than", "more than", "over"
)
_SHORTER = _any(
    *(
        "shorter",
        "shorten",
        "too (?:long|wordy|verbose)",
        "trim",
        "condense",
        "tighten",
        "more concise",
        "halve",
    ),
    *("half (?:as long|the length)", "cut (?:it |this )?(?:down|back|short|by)", "cut (?:the )?length"),
)
_LONGER = _any(
    *("longer", "lengthen", "too (?:short|thin|brief)", "expand", "elaborate", "go deeper"),
    "more (?:depth|details?|words)",
)
_WRITE_FOR = _any(f"write(?: {_IT})? for", f"aim(?: {_IT})? (?:at|for)", f"address(?: {_IT})? to", "target")
_PLACE = _any("first", "top", "front", "beginning", "start", "last", "end", "bottom")

_TABLE = (
    ("title", rf"{_OPENING}(?:title|headline)\b(?:{_IS})?{_MAYBE_TOPIC}"),
    ("audience", rf"{_OPENING}(?:audience|readers?)\b(?:{_IS})?{_MAYBE_TOPIC}"),
    ("audience", rf"\b{_WRITE_FOR} {_TOPIC}"),
    ("focus", rf"\bfocus(?:ed|ing)?(?: \w+)? (?:on|upon) {_TOPIC}"),
    ("angle", rf"{_OPENING}(?:angle|tone|focus|perspective)\b(?:{_IS})?{_MAYBE_TOPIC}"),
    (
        "rename",
        rf"\b(?:rename|retitle|change|call)(?: the)?(?: {_PART})? (?P<topic>.+?) (?:to|into|as) (?P<new>.+)",
    ),
    ("mention", rf"\b{_FAILS_TO} (?:even )?{_SAY} {_TOPIC}"),
    ("remove", rf"\b{_DO_NOT}\b(?: {_ADD})*(?: (?:a|the|any))? {_PART} {_ABOUT} {_TOPIC}"),
    ("avoid", rf"\b{_DO_NOT} {_SAYING} {_TOPIC}"),
    ("avoid", rf"\bavoid {_TOPIC}"),
    ("remove", rf"\b{_DO_NOT}\b(?: {_ADD})* {_TOPIC}"),
    ("add_section", rf"\badd (?:{_ONE_MORE} )*(?P<topic>[^,]{{2,60}}?) {_PART}\W*(?:please\W*)?$"),
    ("add_section", rf"\b{_ADD}\b.{{0,40}}?\b{_PART}\b\s*(?:{_ABOUT}\s*)?{_TOPIC}"),
    ("at_most", rf"\b{_AT_MOST}\s*(?:about |around |roughly )?{_WORDS}"),
    ("at_most", rf"{_WORDS}\s*{_any('max', 'at (?:the )?most', 'or (?:less|fewer)', 'tops')}"),
    ("at_least", rf"\b{_AT_LEAST}\s*{_WORDS}"),
    ("exactly", _WORDS),
    ("shorter", rf"\b{_SHORTER}\b{_MAYBE_TOPIC}"),
    ("longer", rf"\b{_LONGER}\b{_MAYBE_TOPIC}"),
    ("move", rf"\b(?:start|begin|open|lead) with {_TOPIC}"),
    ("move", rf"\b(?:move|put) (?P<topic>.+?) (?:to )?(?:the )?(?P<where>{_PLACE})\b"),
    ("remove", rf"\b{_REMOVE} {_TOPIC}"),
    ("mention", rf"\b{_MENTION}\b:? {_TOPIC}"),
)
PATTERNS = tuple((name, re.compile(pattern, re.IGNORECASE | re.DOTALL)) for name, pattern in _TABLE)

_NEW_REQUEST = _any(
    *("please", "add", "include", "insert", "mention", "write", "cover", "use", "explain", "expand", "focus"),
    *("remove", "drop", "delete", "omit", "cut", "avoid", "don't", "do not", "shorten", "shorter", "longer"),
    *("make", "keep", "change", "rename", "move", "put", "start", "max", "at most", "no more than"),
    *("title", "audience", "the (?:title|audience|tone|angle)"),
)
_BETWEEN = r"(?:\s*[,;]\s*(?:and |but |also |then )*|\s+(?:and|but|then) (?:also )?)"
CLAUSE_BREAK = re.compile(rf"{_BETWEEN}(?={_NEW_REQUEST}\b)", re.IGNORECASE)

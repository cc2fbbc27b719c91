"""Text of agents and people as HTML that can do no harm: no scripts, no pictures from elsewhere, no markup of theirs.

Its author is taken for hostile. Markdown is rendered without HTML of its own, and what comes out is cleaned once more by a parser
that knows nothing of Markdown, so that a fault in one of the two is not enough. A link says where it leads, whatever its text says.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import nh3
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

LONGEST = 60_000  # characters; the nastiest text of that length takes two seconds
TARGET = "target"  # class of what we add to a link
_DEEPEST_HEADING = 6
_HEADINGS_BELOW = 2  # a page has its title and its sections; headings in a text stand below both

_TAGS = {
    "a", "blockquote", "br", "code", "del", "em", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s", "span", "strong",
    "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
_SCHEMES = {"http", "https", "mailto"}


def render(text: str) -> SafeString:
    """Markdown as safe HTML. Only of the first `LONGEST` characters: who has more to show, shows it as plain text."""
    html = _parser().render(text[:LONGEST])
    return mark_safe(  # noqa: S308  # cleaned in this very line
        nh3.clean(
            html,
            tags=_TAGS,
            attributes={"a": {"href"}, "ol": {"start"}},
            allowed_classes={"span": {TARGET}},
            url_schemes=_SCHEMES,
            url_relative="deny",  # nothing that an agent writes links into the console or the admin
            link_rel="noopener noreferrer nofollow",
        )
    )


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    parser.core.ruler.push("lower_headings", _lower_headings)
    parser.add_render_rule("image", _image)
    parser.add_render_rule("link_close", _link_close)
    return parser


def _lower_headings(state: StateCore) -> None:
    for token in state.tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(_DEEPEST_HEADING, int(token.tag[1]) + _HEADINGS_BELOW)}"


def _image(
    self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: MutableMapping[str, Any]
) -> str:
    """Nothing is fetched: the words that stand for the picture, and where it would have come from."""
    token = tokens[index]
    words = self.renderInlineAsText(token.children, options, env)
    return f"<em>[picture: {_escape(words)}]</em>{_target(str(token.attrGet('src') or ''))}"


def _link_close(
    self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: MutableMapping[str, Any]
) -> str:
    start = index
    while tokens[start].type != "link_open":  # links do not nest, so it is the nearest before
        start -= 1
    return f"</a>{_target(str(tokens[start].attrGet('href') or ''))}"


def _target(address: str) -> str:
    """The host of an address, or all of it where it has none."""
    try:
        host = urlsplit(address).hostname
    except ValueError:
        host = None
    return f' <span class="{TARGET}">({_escape((host or address)[:100])})</span>' if address else ""


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")

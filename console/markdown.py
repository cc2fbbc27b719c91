"""Renders Markdown of agents and people as safe HTML: no scripts, no pictures of other sites, no raw HTML.

The author is assumed to be hostile. Markdown is rendered with raw HTML disabled, and an independent HTML parser cleans the result, so that
a flaw in one of the two is not enough. Every link displays its host, whatever its text is.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from django.utils.safestring import SafeString, mark_safe

from tenants.lazy_import import lazy_import

if TYPE_CHECKING:
    import markdown_it
    import nh3
    from markdown_it import MarkdownIt
    from markdown_it.renderer import RendererHTML
    from markdown_it.rules_core import StateCore
    from markdown_it.token import Token
else:
    markdown_it, nh3 = lazy_import("markdown_it"), lazy_import("nh3")

LONGEST = 60_000  # characters; the worst text of that length takes two seconds
TARGET = "target"  # the CSS class of a link's host
_DEEPEST_HEADING = 6
_HEADINGS_BELOW = 2  # headings of a text rank below the page's title and sections

_TAGS = {
    "a", "blockquote", "br", "code", "del", "em", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s", "span", "strong",
    "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
_SCHEMES = {"http", "https", "mailto"}


def render(text: str) -> SafeString:
    """Return safe HTML of the first `LONGEST` characters. Callers display longer texts as plain text."""
    html = _parser().render(text[:LONGEST])
    return mark_safe(  # noqa: S308  # cleaned in this very line
        nh3.clean(
            html,
            tags=_TAGS,
            attributes={"a": {"href"}, "ol": {"start"}},
            set_tag_attribute_values={"pre": {"tabindex": "0"}},  # it scrolls, and the keyboard must reach it
            allowed_classes={"span": {TARGET}},
            url_schemes=_SCHEMES,
            url_relative="deny",  # a text of an agent must not link into the console or the admin
            link_rel="noopener noreferrer nofollow",
        )
    )


@cache
def _parser() -> MarkdownIt:
    parser = markdown_it.MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
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
    """Render the picture's text and host instead of loading it."""
    token = tokens[index]
    words = self.renderInlineAsText(token.children, options, env)
    return f"<em>[picture: {_escape(words)}]</em>{_target(str(token.attrGet('src') or ''))}"


def _link_close(
    self: RendererHTML, tokens: Sequence[Token], index: int, options: Any, env: MutableMapping[str, Any]
) -> str:
    start = index
    while tokens[start].type != "link_open":  # links do not nest, so it is the nearest one before
        start -= 1
    return f"</a>{_target(str(tokens[start].attrGet('href') or ''))}"


def _target(address: str) -> str:
    """Return the host of an address, or the whole address if it has none."""
    try:
        host = urlsplit(address).hostname
    except ValueError:
        host = None
    return f' <span class="{TARGET}">({_escape((host or address)[:100])})</span>' if address else ""


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")

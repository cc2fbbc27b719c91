"""Parses the text of an expression into a tree of frozen nodes, within limits.

The parser has its own stack, so nesting cannot exhaust Python's. An expression that is too deep to be walked
recursively is refused while the tree is built.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from pipelines.definition.errors import quote_value
from pipelines.definition.reading import number, text_error

LONGEST = 2_000  # characters
DEEPEST = 32  # nodes from the top to the bottom
# Of all different expressions of a definition; parsing one token takes up to 10 microseconds.
MOST_TOKENS = 4_000
# A text ends where the grammar ends it, so an escaped quote cannot hide tokens. One without an end is one token, as parsing stops there.
TOKENS = re.compile(r"\w+|\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?|[^\s\w]", re.DOTALL)
GRAMMAR = Path(__file__).with_name("grammar.lark")
ROOTS = frozenset({"params", "item"})
STEP_PARTS = ("data", "content", "status")
CONSTANTS = {"true": True, "false": False, "null": None}
ESCAPES = {"n": "\n", "t": "\t"}


class ExpressionError(ValueError):
    """The expression cannot be parsed, or has no value with this data. `position` is the index of a character."""

    code: ClassVar[str] = "invalid_expression"

    def __init__(self, position: int, message: str) -> None:
        super().__init__(position, message)
        self.position = position
        self.message = message

    def __str__(self) -> str:
        return f"character {self.position + 1}: {self.message}"


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the tree. `depth` is the height of the tree below it, including itself."""

    position: int
    depth: int


@dataclass(frozen=True, slots=True)
class Literal(Node):
    value: str | float | bool | None


@dataclass(frozen=True, slots=True)
class ListOf(Node):
    members: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Root(Node):
    """`params` or `item`."""

    name: str


@dataclass(frozen=True, slots=True)
class StepPart(Node):
    """The data, content or status of an upstream step."""

    step: str
    part: str


@dataclass(frozen=True, slots=True)
class Index(Node):
    """A member of an object or a list. A dot and a name mean the same as the name in brackets."""

    container: Node
    key: Node


@dataclass(frozen=True, slots=True)
class Not(Node):
    operand: Node


@dataclass(frozen=True, slots=True)
class Negative(Node):
    operand: Node


@dataclass(frozen=True, slots=True)
class Logic(Node):
    """Parts joined by `and` or by `or`."""

    word: str
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Comparison(Node):
    """Two values and one of == != < <= > >= in, not in."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Arithmetic(Node):
    """A first value, and further values with their operators, from left to right."""

    first: Node
    others: tuple[tuple[str, Node], ...]


@dataclass(frozen=True, slots=True)
class Call(Node):
    function: str
    arguments: tuple[Node, ...]


def tokens_of(text: str) -> int:
    """Return roughly how many tokens an expression has, without parsing it."""
    return len(TOKENS.findall(text))


# As many as the expressions of the longest definition, so that each is parsed once.
@lru_cache(maxsize=MOST_TOKENS)
def parse(text: str) -> Node:
    """Return the tree of an expression. Raises `ExpressionError`."""
    if len(text) > LONGEST:
        raise ExpressionError(LONGEST, f"an expression must have at most {LONGEST:,} characters")
    problem = text_error(text)
    if problem:
        raise ExpressionError(0, f"the expression {problem}")
    if not text.strip():
        raise ExpressionError(0, "the expression is empty")
    try:
        tree: Any = _parser().parse(text)
    except UnexpectedInput as error:
        raise _translate_error(error, text) from error
    node: Node = tree
    return node


@cache
def _parser() -> Lark:
    return Lark(
        GRAMMAR.read_text(encoding="utf-8"),
        parser="lalr",
        transformer=_Builder(),
        maybe_placeholders=False,
    )


def _translate_error(error: UnexpectedInput, text: str) -> ExpressionError:
    if isinstance(error, UnexpectedCharacters):
        position = error.pos_in_stream or 0
        if text[position] in "\"'":
            return ExpressionError(position, "this text has no closing quote, or holds an invalid escape")
        return ExpressionError(position, f"{quote_value(text[position])} has no meaning here")
    if isinstance(error, UnexpectedToken) and error.token.type != "$END":
        return ExpressionError(
            error.token.start_pos or 0, f"did not expect {quote_value(str(error.token))} here"
        )
    return ExpressionError(len(text), "the expression ends too early")


class _Builder(Transformer[Token, Node]):
    """Builds a node for each rule, from the bottom up, while the parser runs."""

    def number(self, children: list[Token]) -> Node:
        text = str(children[0])
        value = number(float(text) if any(letter in text for letter in ".eE") else int(text))
        if value is None:
            raise ExpressionError(_position(children), "this number is too large")
        return Literal(_position(children), 1, value)

    def text(self, children: list[Token]) -> Node:
        return Literal(_position(children), 1, _unquote(str(children[0])))

    def constant(self, children: list[Token]) -> Node:
        return Literal(_position(children), 1, CONSTANTS[str(children[0])])

    def list_(self, children: list[Any]) -> Node:
        return ListOf(_position(children), _depth_above(children[1:]), tuple(children[1:]))

    def name(self, children: list[Token]) -> Node:
        name = str(children[0])
        if name == "steps":
            raise ExpressionError(
                _position(children), "steps needs the id of a step, as in steps.research.data"
            )
        if name not in ROOTS:
            known = "params, steps.<id> or item; text needs quotes"
            raise ExpressionError(_position(children), f"unknown name {quote_value(name)}: use {known}")
        return Root(_position(children), 1, name)

    def step(self, children: list[Token]) -> Node:
        step, part = str(children[0]).removeprefix("steps."), str(children[1])
        if part not in STEP_PARTS:
            raise ExpressionError(
                _position(children), f"a step has {', '.join(STEP_PARTS)}, but no {quote_value(part)}"
            )
        return StepPart(_position(children), 1, step, part)

    def group(self, children: list[Node]) -> Node:
        return replace(children[0], depth=_depth_above(children))

    def call(self, children: list[Any]) -> Node:
        return Call(_position(children), _depth_above(children[1:]), str(children[0]), tuple(children[1:]))

    def member(self, children: list[Any]) -> Node:
        key = Literal(_position(children[1:]), 1, str(children[1]))
        return Index(_position(children), _depth_above(children[:1]), children[0], key)

    def index(self, children: list[Any]) -> Node:
        container, _, key = children
        return Index(_position(children), _depth_above([container, key]), container, key)

    def negative(self, children: list[Any]) -> Node:
        return Negative(_position(children), _depth_above(children[1:]), children[1])

    def not_(self, children: list[Any]) -> Node:
        return Not(_position(children), _depth_above(children[1:]), children[1])

    def compare(self, children: list[Any]) -> Node:
        left, operator, right = children
        word = "not in" if operator.type == "NOT_IN" else str(operator)
        return Comparison(_position(children[1:]), _depth_above([left, right]), word, left, right)

    def either(self, children: list[Node]) -> Node:
        return Logic(_position(children), _depth_above(children), "or", tuple(children))

    def both(self, children: list[Node]) -> Node:
        return Logic(_position(children), _depth_above(children), "and", tuple(children))

    def sum(self, children: list[Any]) -> Node:
        operators, values = children[1::2], children[2::2]
        others = tuple((str(operator), value) for operator, value in zip(operators, values, strict=True))
        return Arithmetic(_position(children), _depth_above(children[::2]), children[0], others)

    product = sum


def _position(children: Sequence[Node | Token]) -> int:
    first = children[0]
    return (first.start_pos or 0) if isinstance(first, Token) else first.position


def _depth_above(children: Sequence[Node]) -> int:
    depth = 1 + max((child.depth for child in children), default=0)
    if depth > DEEPEST:
        raise ExpressionError(children[0].position, f"nested deeper than {DEEPEST} levels")
    return depth


def _unquote(text: str) -> str:
    parts = iter(text[1:-1])
    return "".join(
        letter if letter != "\\" else ESCAPES.get(escaped := next(parts), escaped) for letter in parts
    )

"""Expressions: the small language of `when` (true or false) and `for_each` (a list) in the steps of a pipeline.

    steps.research.data.score >= params.threshold and not contains(steps.research.content, "draft")
    steps.plan.data.sections
    len(default(steps.plan.data.sections, [])) > 3 or params.channel in ["email", "slack"]

It reads JSON values and computes others, and can do nothing else: there is no way to a Python object, to an
attribute, a file, a clock or a pattern, no way to define anything, and no loop. A member is a key of an object. Text,
depth, steps of evaluation and results are bounded, so every expression ends within milliseconds.

**Names.** `params`, `steps.<id>.data`, `steps.<id>.content`, `steps.<id>.status` (done, failed or skipped) and, within a
step that has a `for_each`, `item`. Members follow after a dot or in brackets: `params.market`, `item["first-name"]`,
`item[0]`, `item[-1]`.

**Values.** null, true, false, numbers, text in double or single quotes (with backslash escapes for the quotes, the backslash,
n and t), lists in brackets; from data also objects.

**Operators**, from loosest to tightest: or; and; not; == != < <= > >= in, not in (which do not chain); + -; * / %; unary -.
`+` also joins two texts or two lists. `in` looks for a member of a list, a key of an object, a part of a text.

**Functions.** len, lower, upper, contains, startswith, endswith, min, max, sum, any, all, default, int, number, string.

**Strict where it matters.** What is not there is null: a missing member, an index beyond the end, any member of null, a step
without output. Null equals null, and `default(value, other)` replaces it; anything else done with null is an error, and so is
a condition that is neither true nor false. Nothing is converted silently: true is not a number, "5" is not 5, and text is
never ordered against numbers. `and` and `or` look at their right side only if the left one does not decide.
"""

from pipelines.expressions.evaluation import Kind, Reads, check, condition, evaluate, items, reads
from pipelines.expressions.syntax import LONGEST, MOST_TOKENS, ExpressionError, tokens_of

__all__ = (
    "LONGEST", "MOST_TOKENS", "ExpressionError", "Kind", "Reads", "check", "condition", "evaluate", "items", "reads", "tokens_of",
)  # fmt: skip

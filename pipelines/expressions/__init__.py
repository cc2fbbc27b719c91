"""Expressions: the small language of `when` (true or false) and `for_each` (a list) in the steps of a pipeline.

    steps.research.data.score >= params.threshold and not contains(steps.research.content, "draft")
    steps.plan.data.sections
    len(default(steps.plan.data.sections, [])) > 3 or params.channel in ["email", "slack"]

An expression reads JSON values and computes others, and nothing else: it cannot reach Python objects or attributes, files,
the clock or regular expressions, define anything, or loop. A member is a key of an object. Text, depth, steps of evaluation
and results are limited, so every expression ends within milliseconds.

**Names.** `params`, `steps.<id>.data`, `steps.<id>.content`, `steps.<id>.status` (done, failed or skipped) and `item`, in the
`when` of a step that has a `for_each`. Members follow after a dot or in brackets: `params.market`, `item["first-name"]`,
`item[0]`, `item[-1]`.

**Values.** null, true, false, numbers, text in double or single quotes (with backslash escapes for the quotes, the backslash,
n and t), lists in brackets; from data also objects.

**Operators**, from lowest to highest precedence: or; and; not; == != < <= > >= in, not in (which do not chain); + -; * / %; unary -.
`+` also joins two texts or two lists. `in` looks for a member of a list, a key of an object, or a part of a text.

**Functions.** len, lower, upper, contains, startswith, endswith, min, max, sum, any, all, default, int, number, string.

**Missing values and types.** A missing member, an index beyond the end, any member of null, and a step without output are null.
Null equals null, and `default(value, other)` replaces it; any other use of null is an error, and so is a condition that is
neither true nor false. Nothing is converted implicitly: true is not a number, "5" is not 5, and text cannot be ordered against
numbers. `and` and `or` evaluate their right side only if the left side does not decide.
"""

from pipelines.expressions.evaluation import Kind, Reads, check, condition, evaluate, items, reads
from pipelines.expressions.syntax import LONGEST, MOST_TOKENS, ExpressionError, tokens_of

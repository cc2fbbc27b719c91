"""Prices of models: from the platform's settings, else from the library's list if it is installed, else from a small built-in list.

Prices are for plain input and output tokens, without discounts for caches; agents can report their exact cost instead. Requests in a
provider's batches cost a share of that, by default half.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

from django.conf import settings

MILLION = 1_000_000

#: Dollars per million tokens of input and of output, by prefix of the model's name; the longest match counts. Used when
#: `genai-prices` (extra `llm`) is not installed or does not know the model. As of November 2026.
BUILT_IN = {
    "claude-3-5-haiku": ("0.80", "4"),
    "claude-haiku-4": ("1", "5"),
    "claude-opus-4-1": ("15", "75"),
    "claude-opus-4-5": ("5", "25"),
    "claude-sonnet-4": ("3", "15"),
    "gpt-4o": ("2.50", "10"),
    "gpt-4o-mini": ("0.15", "0.60"),
    "gpt-5": ("1.25", "10"),
    "gpt-5-mini": ("0.25", "2"),
}


#: The price of a token in a batch, as a share of its normal price.
BATCH_FACTOR = Decimal("0.5")


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per token."""

    input: Decimal
    output: Decimal


def price_of(model: str | None, *, in_batch: bool = False) -> Price | None:
    """Return the price, or None if it is unknown: then tokens are counted, but dollars are not."""
    if not model:
        return None
    own = settings.ORCHESTRATOR_MODEL_PRICES.get(model)
    price = _per_token(*own[:2]) if own is not None else _find_in_list(model)
    if price is None or not in_batch:
        return price
    factor = Decimal(str(own[2])) if own is not None and len(own) > 2 else BATCH_FACTOR
    return Price(price.input * factor, price.output * factor)


@lru_cache(maxsize=1000)
def _find_in_list(model: str) -> Price | None:
    return _by_library(model) or _find_in_table(model)


def _by_library(model: str) -> Price | None:
    try:
        from genai_prices import Usage, calc_price
    except ImportError:
        return None
    try:
        input_price = calc_price(Usage(input_tokens=1_000, output_tokens=0), model_ref=model)
        output_price = calc_price(Usage(input_tokens=0, output_tokens=1_000), model_ref=model)
    except LookupError:
        return None
    return Price(input_price.total_price / 1_000, output_price.total_price / 1_000)


def _find_in_table(model: str) -> Price | None:
    name = model.rpartition("/")[2]
    known = max((prefix for prefix in BUILT_IN if name.startswith(prefix)), key=len, default=None)
    return None if known is None else _per_token(*BUILT_IN[known])


def _per_token(input_price: object, output_price: object) -> Price:
    return Price(Decimal(str(input_price)) / MILLION, Decimal(str(output_price)) / MILLION)

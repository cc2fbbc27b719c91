"""Which faults come when, drawn from a seed: a row of waves, each of some faults that overlap.

Kinds come from a deck that is shuffled again when it is used up, so every kind comes before one comes twice. After each wave there is
quiet until work flows again; so recovery is measured kind by kind. The plan goes on for as long as it is asked.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.chaos.faults import KINDS

STAGGER_SECONDS = 2.0  # between the first and the last fault of a wave


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault: when in its wave, for how long, and the seed of its details."""

    kind: str
    target: str
    after: float
    seconds: float
    seed: int


def waves(seed: int, kinds: Sequence[str], at_once: int) -> Iterator[list[Planned]]:
    """Endless. The first wave of three has one fault, the others up to `at_once`."""
    chance = random.Random(seed)
    deck: list[str] = []
    number = 0
    while True:
        wanted = 1 if number % 3 == 0 else chance.randint(min(2, at_once), at_once)
        wave: list[Planned] = []
        taken: set[str] = set()
        passed: list[str] = []
        while len(wave) < wanted:
            if not deck:
                if passed or (wave and len(kinds) == len({planned.kind for planned in wave})):
                    break
                deck = chance.sample(list(kinds), len(kinds))
            name = deck.pop()
            planned = _drawn(name, chance, taken)
            if planned is None:
                passed.append(name)
                continue
            taken |= KINDS[name].claims(planned.target)
            wave.append(planned)
        deck += reversed(passed)
        number += 1
        yield wave


def _drawn(name: str, chance: random.Random, taken: set[str]) -> Planned | None:
    fault = KINDS[name]
    free = [target for target in fault.targets if not fault.claims(target) & taken]
    target, seconds, after = (
        chance.choice(fault.targets),
        chance.uniform(*fault.seconds),
        chance.uniform(0, STAGGER_SECONDS),
    )
    seed = chance.randrange(2**32)
    if not free:
        return None
    if target not in free:
        target = free[seed % len(free)]
    return Planned(name, target, round(after if taken else 0.0, 2), round(seconds, 1), seed)

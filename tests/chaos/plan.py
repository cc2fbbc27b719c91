"""The plan of faults, drawn from a seed: a sequence of waves, each of some overlapping faults.

Kinds come from a deck that is shuffled again when it is used up, so every kind occurs before one is repeated. After each wave there are
no faults until work flows again, so that recovery is measured for each kind. The plan is endless.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.chaos.faults import KINDS

STAGGER_SECONDS = 2.0  # between the first and the last fault of a wave


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault: its start in the wave, its duration, and the seed of its details."""

    kind: str
    target: str
    after: float
    seconds: float
    seed: int


def waves(seed: int, kinds: Sequence[str], at_once: int) -> Iterator[list[Planned]]:
    """Yield waves without end. Every third wave has one fault, the others up to `at_once`."""
    chance = random.Random(seed)
    deck: list[str] = []
    number = 0
    while True:
        size = 1 if number % 3 == 0 else chance.randint(min(2, at_once), at_once)
        wave: list[Planned] = []
        claimed: set[str] = set()
        postponed: list[str] = []
        while len(wave) < size:
            if not deck:
                if postponed or (wave and len(kinds) == len({planned.kind for planned in wave})):
                    break
                deck = chance.sample(list(kinds), len(kinds))
            name = deck.pop()
            planned = _draw(name, chance, claimed)
            if planned is None:
                postponed.append(name)
                continue
            claimed |= KINDS[name].claims(planned.target)
            wave.append(planned)
        deck += reversed(postponed)
        number += 1
        yield wave


def _draw(name: str, chance: random.Random, claimed: set[str]) -> Planned | None:
    fault = KINDS[name]
    free = [target for target in fault.targets if not fault.claims(target) & claimed]
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
    return Planned(name, target, round(after if claimed else 0.0, 2), round(seconds, 1), seed)

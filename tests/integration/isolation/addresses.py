"""What the addresses of the API are filled with: a tenant's own ids, found by asking the tenant's own lists."""

from __future__ import annotations

from itertools import product
from typing import Any
from uuid import uuid4

from tests.integration.isolation import sending
from tests.integration.isolation.surface import Operation
from tests.integration.isolation.world import API, World

# The same for all tenants, so nothing about a tenant can be told from them.
SHARED = {"role": "qa", "agent_role": "qa", "tool": "report_blocker", "deployments": str(uuid4())}
# What lists call an id that they do not call "id".
NAMES_OF_IDS = {"subagents": "subagent_id"}
# What fields and filters call the things of a list, where that is not the beginning of the list's name.
CALLED = {
    "activities": "parent",
    "batches": "batch",
    "deliverable-periods": "period",
    "pipeline-runs": "replay-of",
}


class Things:
    """The ids of one tenant, by the address of the list that they are in."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._found: dict[str, str] = {}

    def value(self, place: str, parameter: str) -> str:
        """What stands for the parameter after this (filled) beginning of an address."""
        segment = place.rstrip("/").rpartition("/")[2]
        if parameter in SHARED or segment in SHARED:
            return SHARED.get(parameter) or SHARED[segment]
        if not parameter.endswith("id"):
            return self.world.word
        if unlisted := self._unlisted(place):
            self._found[place] = unlisted
        if place not in self._found:
            answer = self.world.admin.get(f"{place}?limit=1", headers={"Accept": sending.ACCEPT})
            results = answer.json().get("results") if answer.status_code == 200 else None
            assert results, (
                f"{place} lists nothing of the tenant, so {parameter} cannot be tried: {answer.content!r}"
            )
            self._found[place] = str(results[0][NAMES_OF_IDS.get(segment, "id")])
        return self._found[place]

    def _unlisted(self, place: str) -> str | None:
        """An id that no list tells of, or for which another than the newest of the list is wanted."""
        run = self.world.live_run
        if place.startswith(f"{API}mailboxes/") and place.endswith("/batches/"):
            return self.world.mailbox_batch
        return {f"{API}agent-runs/": str(run.pk), f"{API}activities/": str(run.activity_id)}.get(place)

    def all_ids(self) -> dict[str, str]:
        """Every id found so far, by the list it is in; each once."""
        return {place: found for place, found in self._found.items() if place.count("/") == 4}


def tried(operation: Operation, mine: Things, theirs: Things) -> list[tuple[str, str]]:
    """Addresses with at least one id of theirs, each with the same that has ids of nowhere instead: all mixtures with mine."""
    pairs = []
    for chosen in product((False, True), repeat=len(operation.parameters)):
        found, nowhere, foreign = operation.address, operation.address, False
        for parameter, is_theirs in zip(operation.parameters, chosen, strict=True):
            before = found.partition("{")[0]
            value = (theirs if is_theirs else mine).value(
                _owned(before, theirs if is_theirs else mine, operation), parameter
            )
            shared = value in SHARED.values()
            foreign |= is_theirs and not shared
            found = found.replace(f"{{{parameter}}}", value)
            absent = value if shared or not is_theirs else _nowhere(value, theirs.world)
            nowhere = nowhere.replace(f"{{{parameter}}}", absent)
        if foreign and (found, nowhere) not in pairs:
            pairs.append((found, nowhere))
    return pairs


def own(operation: Operation, things: Things) -> str:
    """The address with the tenant's own ids."""
    address = operation.address
    for parameter in operation.parameters:
        address = address.replace(f"{{{parameter}}}", things.value(address.partition("{")[0], parameter))
    return address


def _owned(before: str, things: Things, operation: Operation) -> str:
    """The list in which the owner finds the next id: under a parent of the owner's, anyone who's parent is in the address."""
    address, place = operation.address, ""
    depth = before.count("/")
    for parameter in operation.parameters:
        place = address.partition("{")[0]
        if place.count("/") == depth:
            break
        address = address.replace(f"{{{parameter}}}", things.value(place, parameter))
    return place


def _nowhere(value: str, world: World) -> str:
    return NOWHERE_WORD if value == world.word else str(uuid4())


NOWHERE_WORD = "cedarco-word"


def candidates(theirs: Things, path: Any) -> list[str]:
    """Ids of theirs that a field or filter of this name may mean: those whose list sounds like it, or else all."""
    name = "".join(str(step) for step in path).lower().replace("_", "-")
    known = theirs.all_ids()
    alike = [found for place, found in known.items() if _sounds_like(place.split("/")[3], name)]
    return alike or list(known.values())


def _sounds_like(things: str, name: str) -> bool:
    return things.rstrip("s")[:6] in name or CALLED.get(things, things) in name

"""Fills the addresses of the API with ids of a tenant, which are read from the tenant's own lists."""

from __future__ import annotations

from itertools import product
from typing import Any
from uuid import uuid4

from tests.integration.isolation import sending
from tests.integration.isolation.surface import Operation
from tests.integration.isolation.world import API, World

# Values that all tenants share, which therefore reveal nothing about a tenant.
SHARED = {"role": "qa", "agent_role": "qa", "tool": "report_blocker", "deployments": str(uuid4())}
# Lists whose id field is not called "id".
NAMES_OF_IDS = {"subagents": "subagent_id"}
# Names in fields and filters for items of a list, where these do not begin like the name of the list.
NAMES_OF_ITEMS = {
    "activities": "parent",
    "batches": "batch",
    "deliverable-periods": "period",
    "pipeline-runs": "replay-of",
}


class Things:
    """The ids of one tenant by the address of their list."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._ids: dict[str, str] = {}

    def value(self, place: str, parameter: str) -> str:
        """Return the value of the parameter that follows this filled beginning of an address."""
        segment = place.rstrip("/").rpartition("/")[2]
        if parameter in SHARED or segment in SHARED:
            return SHARED.get(parameter) or SHARED[segment]
        if not parameter.endswith("id"):
            return self.world.word
        if unlisted := self._unlisted(place):
            self._ids[place] = unlisted
        if place not in self._ids:
            answer = self.world.admin.get(f"{place}?limit=1", headers={"Accept": sending.ACCEPT})
            results = answer.json().get("results") if answer.status_code == 200 else None
            assert results, (
                f"{place} lists nothing of the tenant, so {parameter} cannot be tested: {answer.content!r}"
            )
            self._ids[place] = str(results[0][NAMES_OF_IDS.get(segment, "id")])
        return self._ids[place]

    def _unlisted(self, place: str) -> str | None:
        """Return an id that is not the newest of its list, or is in no list."""
        run = self.world.live_run
        if place.startswith(f"{API}mailboxes/") and place.endswith("/batches/"):
            return self.world.mailbox_batch
        return {f"{API}agent-runs/": str(run.pk), f"{API}activities/": str(run.activity_id)}.get(place)

    def all_ids(self) -> dict[str, str]:
        """Return every known id by its list, without nested lists."""
        return {place: each for place, each in self._ids.items() if place.count("/") == 4}


def foreign_addresses(operation: Operation, mine: Things, theirs: Things) -> list[tuple[str, str]]:
    """Pair each address with at least one foreign id with the same address with unknown ids, for all mixtures with own ids."""
    pairs = []
    for choice in product((False, True), repeat=len(operation.parameters)):
        address, nowhere, foreign = operation.address, operation.address, False
        for parameter, is_theirs in zip(operation.parameters, choice, strict=True):
            before = address.partition("{")[0]
            value = (theirs if is_theirs else mine).value(
                _owned(before, theirs if is_theirs else mine, operation), parameter
            )
            shared = value in SHARED.values()
            foreign |= is_theirs and not shared
            address = address.replace(f"{{{parameter}}}", value)
            absent = value if shared or not is_theirs else _nowhere(value, theirs.world)
            nowhere = nowhere.replace(f"{{{parameter}}}", absent)
        if foreign and (address, nowhere) not in pairs:
            pairs.append((address, nowhere))
    return pairs


def own(operation: Operation, things: Things) -> str:
    """Return the address filled with the tenant's own ids."""
    address = operation.address
    for parameter in operation.parameters:
        address = address.replace(f"{{{parameter}}}", things.value(address.partition("{")[0], parameter))
    return address


def nowhere(operation: Operation) -> str:
    """Return the address filled with ids that no tenant has."""
    values = {
        name: SHARED.get(name) or (str(uuid4()) if name.endswith("id") else NOWHERE_WORD)
        for name in operation.parameters
    }
    return operation.address.format(**values)


def _owned(before: str, things: Things, operation: Operation) -> str:
    """Return the list of the owner that contains the next id, under the owner's own parents."""
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
    """Return the foreign ids that a field of this name may mean: those of a list with a similar name, or else all."""
    name = "".join(str(step) for step in path).lower().replace("_", "-")
    known = theirs.all_ids()
    similar = [each for place, each in known.items() if _sounds_like(place.split("/")[3], name)]
    return similar or list(known.values())


def _sounds_like(things: str, name: str) -> bool:
    return things.rstrip("s")[:6] in name or NAMES_OF_ITEMS.get(things, things) in name

"""Where admission keeps what in Redis. The only place that names keys.

`<prefix>admission` is the pointer: it names the generation in force. Everything else lies under
`<prefix>admission:<generation>:` so that a rebuild writes beside what is in use, and opening it is one SET.

    entries       hash    activity -> lane
    queue:<lane>  zset    activity by score: enqueued ms + 30 s per level of priority
    lanes         hash    lane -> "ready", the scope it is parked at, or "worker:<role>" when nobody serves the role
    ready:<pool>:<band>           zset  tenant by virtual time
    lanes:<pool>:<band>:<tenant>  zset  lane by the score of its first waiter
    parked:<scope>                zset  lane by the score of its first waiter
    slots, used, held             hash  activity -> slot, scope -> count, role -> count
    unstarted     zset    activity by the ms of its grant
    caps, weights, pools, digest  limits in force
    vtime:<pool>, floors, durations, since_aged, active, waiting, grants   book-keeping of fairness

The scripts derive these names from the pointer, so all keys must be on one shard (Redis Cluster is not supported).
"""

from __future__ import annotations

from django.conf import settings


def pointer() -> str:
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}admission"


def generation(name: str) -> str:
    return f"{pointer()}:{name}:"

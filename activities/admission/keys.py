"""The keys of admission in Redis. This is the only place that names them.

`<prefix>admission` is the pointer. It names the generation in force, `<layout>-<random>`. All other keys begin with
`<prefix>admission:<generation>:`, so that a rebuild does not touch the data in use, and one SET opens it. A generation with another layout
is ignored: after an upgrade that changes the keys below, admission is rebuilt.

    epoch         string  of the leader that wrote this generation
    entries       hash    activity -> "since ms|lane"
    express       zset    tenant with work that may run despite its pauses, by turn
    express:<tenant>  zset  that work by the ms at which a person requested it; what could not start may come later
    queue:<lane>  zset    activity by score: enqueued ms + 30 s per level of priority
    lanes         hash    lane -> "", or the scope (its group, its files, its origin) at which it is parked
    lanes:<role>:<band>:<tenant>  zset  lane by the score of its first waiter; infinite while it is parked
    parked        set     scopes at which lanes are parked
    parked:<scope>        set   lanes that wait for a slot of this scope
    ready:<role>:<band>   zset  "score of the first waiter|tenant" by virtual time
    ready:<role>:<band>:own   zset  "score of the first waiter|tenant:own", the same for tenants with their own limit of starts
    places:<tenant>       hash  "role|band" -> member of ready:<role>:<band> or ...:own; empty while a limit of the tenant is full
    tenants       set     tenants with waiting work
    waiting, backlog      hash  "role|band", "tenant|role|band" -> number of waiting activities
    slots, used, held     hash  activity -> slot, scope -> count, role -> count
    unstarted     zset    activity by the ms of its grant
    again         hash    activity offered before its slot was released -> the arguments of the offer, as JSON
    caps, weights, pools, digest, limits_version  limits in force, and how often they have changed
    tokens, holds         hash  "tenant|role" -> "tokens|at ms"; "tenant|role|urgent or rest" -> "until ms|code|holder"
    starts:<scope>        zset  grant by the ms of its start, of the last minute
    due           zset    "tenant|role|band" that waits for a rate limit, by the ms at which this has a token
    alarm         string  the ms at which a caller will call again, for a rate limit
    files, file_uses      hash  "tenant|digest" -> paths of a set of files, and how many waiting or running activities have it
    holders:<tenant>      hash  digest -> activity that runs on these files
    claims:<tenant>       hash  lane that waits for its files -> "band|score" of its claim to them
    times:<domain>        hash  "tenant|band" -> virtual time
    floors        hash    virtual time of the tenant served last, by role and by domain
    durations, since_aged, grants   average durations, aged work passed over, a counter that makes grants unique

The scripts derive these names from the pointer, so all keys must be on one shard (Redis Cluster is not supported).
"""

from __future__ import annotations

from django.conf import settings

LAYOUT = "6"  # of the keys above. Increase it with every change that older scripts would misread.


def pointer() -> str:
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}admission"


def new_generation(name: str) -> str:
    return f"{LAYOUT}-{name}"


def is_current(generation: object) -> bool:
    """Whether the pointer names a generation that these scripts can read."""
    return isinstance(generation, bytes) and generation.startswith(f"{LAYOUT}-".encode())


def generation(name: str) -> str:
    return f"{pointer()}:{name}:"

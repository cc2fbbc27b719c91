"""Where admission keeps what in Redis. The only place that names keys.

`<prefix>admission` is the pointer: it names the generation in force, `<layout>-<random>`. Everything else lies under
`<prefix>admission:<generation>:` so that a rebuild writes beside what is in use, and opening it is one SET. A generation of another
layout counts as none: after an upgrade that changes what follows, admission is built anew.

    epoch         string  of the leader that wrote this generation
    entries       hash    activity -> "since ms|lane"
    express       zset    activity that goes past the pauses of its tenant, by the ms at which a person said so
    queue:<lane>  zset    activity by score: enqueued ms + 30 s per level of priority
    lanes         hash    lane -> "", or the scope of its own (its group, its files, where it comes from) at which it is parked
    lanes:<role>:<band>:<tenant>  zset  lane by the score of its first waiter; infinite while it is parked
    parked        set     scopes at which lanes are parked
    parked:<scope>        set   lanes that wait for a slot of this scope
    ready:<role>:<band>   zset  "score of the first waiter|tenant" by virtual time
    places:<tenant>       hash  "role|band" -> member of ready:<role>:<band>; empty while a limit of the tenant is full
    tenants       set     tenants with anything waiting
    waiting, backlog      hash  "role|band", "tenant|role|band" -> how many wait
    slots, used, held     hash  activity -> slot, scope -> count, role -> count
    unstarted     zset    activity by the ms of its grant
    again         hash    activity whose slot is still to be released -> what it was offered with meanwhile, as JSON
    caps, weights, pools, digest  limits in force
    tokens, holds         hash  "tenant|role" -> "tokens|at ms"; "tenant|role|urgent or rest" -> "until ms|code|holder"
    starts:<scope>        zset  grant by the ms of its start, of the last minute
    due           zset    "tenant|role|band" of what waits for a limit over time, by the ms at which that has room
    alarm         string  the ms for which somebody has been told to ask again
    files, file_uses      hash  "tenant|digest" -> paths of a set of files, and how much work that waits or runs has it
    holders:<tenant>      hash  digest -> activity that runs on these files
    claims:<tenant>       hash  lane that waits for its files -> "band|score" of its claim to them
    times:<domain>        hash  "tenant|band" -> virtual time
    floors        hash    where those stand who were served last, by role and by domain
    durations, since_aged, grants   average durations, aged work passed over, a counter that makes grants unique

The scripts derive these names from the pointer, so all keys must be on one shard (Redis Cluster is not supported).
"""

from __future__ import annotations

from django.conf import settings

LAYOUT = "5"  # of the keys below: raise it with every change that older scripts would misread


def pointer() -> str:
    return f"{settings.ORCHESTRATOR_REDIS_PREFIX}admission"


def new_generation(name: str) -> str:
    return f"{LAYOUT}-{name}"


def is_current(generation: object) -> bool:
    """Whether the pointer's value names a generation that our scripts can read."""
    return isinstance(generation, bytes) and generation.startswith(f"{LAYOUT}-".encode())


def generation(name: str) -> str:
    return f"{pointer()}:{name}:"

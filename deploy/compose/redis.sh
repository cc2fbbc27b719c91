#!/bin/sh
# Valkey reads its configuration from standard input, so that passwords stand neither in a command line nor in a file.
# The users are those of orchestrator/embedded/valkey.py; a test compares them. noeviction: it holds queues and limits, not a cache.
# A full one must refuse writes, never drop what it has.
set -eu
exec valkey-server - <<CONFIGURATION
dir /data
requirepass $REDISCLI_AUTH
appendonly yes
appendfsync everysec
maxmemory 512mb
maxmemory-policy noeviction
user web on >$REDIS_WEB_PASSWORD ~orchestrator:* ~agent__* ~system* ~dead-letter* ~deliverable-period* ~schedules* ~webhook-outbound* ~batches* ~digest* ~notifications__* ~_kombu.binding* &* +@all -@admin -@dangerous -function -fcall -fcall_ro +info -script +script|load +script|exists
user worker on >$REDIS_WORKER_PASSWORD ~orchestrator:* ~agent__* ~system* ~dead-letter* ~deliverable-period* ~schedules* ~webhook-outbound* ~batches* ~digest* ~notifications__* ~_kombu.binding* ~unacked* ~*.celery.pidbox* ~celeryev* &* +@all -@admin -@dangerous -function -fcall -fcall_ro +info -script +script|load +script|exists
user beat on >$REDIS_BEAT_PASSWORD ~orchestrator:* ~agent__* ~system* ~dead-letter* ~deliverable-period* ~schedules* ~webhook-outbound* ~batches* ~digest* ~notifications__* ~_kombu.binding* &* +@all -@admin -@dangerous -function -fcall -fcall_ro +info -script +script|load +script|exists
user flower on >$REDIS_FLOWER_PASSWORD %R~agent__* %R~system* %R~dead-letter* %R~deliverable-period* %R~schedules* %R~webhook-outbound* %R~batches* %R~digest* %R~notifications__* ~_kombu.binding* ~*.celery.pidbox* ~celeryev* ~flower:* &* +@all -@admin -@dangerous -function -fcall -fcall_ro +info -script +script|load +script|exists
CONFIGURATION

#!/bin/sh
# Lines for .env that name every image of docker-compose.yml and the Dockerfile by its digest, so that what was tried is what runs:
#
#   deploy/pin-images.sh >> .env
#
# Asks the registry through docker, podman or skopeo, whichever is there, and changes nothing. An image that cannot be looked up is named on
# the standard error, and the exit code is 1. PostgreSQL, Valkey, MongoDB and Python may be given as POSTGRES_IMAGE and so on to pin others.
set -u

digest_of() {
    if command -v docker > /dev/null; then
        docker buildx imagetools inspect "$1" --format '{{.Manifest.Digest}}' 2> /dev/null
    elif command -v skopeo > /dev/null; then
        skopeo inspect --no-tags --format '{{.Digest}}' "docker://$1" 2> /dev/null
    elif command -v podman > /dev/null; then
        podman manifest inspect "$1" > /dev/null 2>&1 && podman pull -q "$1" > /dev/null &&
            podman image inspect --format '{{.Digest}}' "$1" 2> /dev/null
    fi
}

pin() {
    image=${2%@*}
    digest=$(digest_of "$image")
    case $digest in
        sha256:*) echo "$1=$image@$digest" ;;
        *)
            echo "$image: no registry tells its digest" >&2
            failed=1
            ;;
    esac
}

failed=0
pin POSTGRES_IMAGE "${POSTGRES_IMAGE:-docker.io/library/postgres:18}"
pin VALKEY_IMAGE "${VALKEY_IMAGE:-docker.io/valkey/valkey:9}"
pin MONGO_IMAGE "${MONGO_IMAGE:-docker.io/library/mongo:8}"
pin PYTHON_IMAGE "${PYTHON_IMAGE:-docker.io/library/python:3.12-slim}"
exit $failed

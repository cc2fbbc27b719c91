"""Our containers on a real engine, by `make compose-check` and `make cluster-check`. They need podman and minutes, so no test runs them."""

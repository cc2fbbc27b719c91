"""Our containers on a real engine: `make compose-check` and `make cluster-check`. No test runs them, as they need podman and minutes."""

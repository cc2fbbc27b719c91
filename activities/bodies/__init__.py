"""Bodies that come in by more than one door: over the API, and from agents that run inside a worker."""

"""The demonstration: real pipelines on a real text, run only through the public API."""

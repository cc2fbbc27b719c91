"""Checks of what we depend on. They need registries, so no test runs them: `make audit` and `make sbom` do."""

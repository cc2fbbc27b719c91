"""Checks of our dependencies. They need registries, so no test runs them: `make audit` and `make sbom` do."""

"""The documentation as a site: what `mkdocs` cannot do by itself. `make docs` builds it, and nothing is fetched for it."""

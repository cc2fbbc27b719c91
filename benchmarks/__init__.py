"""Benchmarks. `python -m benchmarks --help` lists their topics; results are stored in `benchmarks/results/`."""

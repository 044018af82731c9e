"""Measurements against the peers: `python -m benchmarks.accounting` and its neighbours."""

"""Benchmarks beyond the paper: one-shot federated detection, streams, ablations."""

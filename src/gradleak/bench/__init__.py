"""Benchmarks: ratios within one run, interleaved, with intervals. Never part of the tests."""

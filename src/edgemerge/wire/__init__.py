"""Bytes: values and states encoded and decoded, and the checks that a contribution must pass."""

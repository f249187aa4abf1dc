"""Doing the jobs of the evaluation on several cores, and keeping what they find."""

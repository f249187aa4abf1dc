"""Merges: what operators choose about who is told what, and what that would change."""

"""Operators' choices: which device adopts whose contributions, and what that would do."""

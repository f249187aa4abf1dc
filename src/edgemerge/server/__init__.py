"""The server: keeps the newest contributions of fleets, and tells their sums."""

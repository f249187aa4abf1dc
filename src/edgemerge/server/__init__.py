"""The server: stores the newest contributions of fleets, and answers with their sums."""

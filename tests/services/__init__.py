"""Real services for tests: started for them on loopback, stopped after them."""

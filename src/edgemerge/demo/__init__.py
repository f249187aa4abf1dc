"""The demo: simulated pumps that learn alone, then merge once; before and after."""

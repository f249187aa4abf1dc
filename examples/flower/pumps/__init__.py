"""Pumps on Flower: an app that runs as it is."""

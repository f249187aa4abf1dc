"""Reports: what devices say about themselves, taken in, kept within bounds, and told apart."""

"""The dashboard: pages for the operator of a server, and what keeps them up to date."""

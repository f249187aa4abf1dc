"""Reports: what devices say about themselves, in memory and in the database, bounded."""

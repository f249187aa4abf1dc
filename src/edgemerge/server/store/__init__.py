"""The store: one text of SQL for SQLite and PostgreSQL, and one writer before both."""

"""The database: SQLite or PostgreSQL behind one interface, migrations, one writer."""

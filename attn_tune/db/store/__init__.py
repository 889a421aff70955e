"""The SQLite file: schema, connection, writer lock, trials, runs, merging, garbage collection, health."""

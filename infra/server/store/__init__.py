"""What the Metrics server remembers: one database, one writer."""

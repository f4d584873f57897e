"""`div`: a directory becomes a run, and its telemetry is read."""

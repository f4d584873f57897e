"""The Metrics target: spools a run's events, sends them in the background, keeps what is unacknowledged."""

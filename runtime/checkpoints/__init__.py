"""Checkpoints: a run's state at a location, and the record that says which of it counts."""

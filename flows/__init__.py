"""What Prefect runs when, where, and again: flows, scheduling and rescue."""

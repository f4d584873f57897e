"""What happens inside a run: the loop, what decides its bits, signals, metrics, progress."""

"""What every command that asks a Metrics server has in common: the connection, errors, what is printed."""

"""`syvain-metrics`: the Metrics server from the command line."""

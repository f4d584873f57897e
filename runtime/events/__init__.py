"""The stream of events: what a run says while it runs, to files, to standard output and to Metrics."""

"""What stands beside a run: the Metrics server and its pages, the local stack, deployment files."""

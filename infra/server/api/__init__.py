"""The wire protocol: HTTP in, refusals and replies out."""

"""One module per command group; what a command needs is imported when it runs."""

"""The whole stack on one machine: what runs, on which ports, in which data directory, and its verbs."""

"""What is trained: experiment files, their knobs, their sources, their identity."""

"""What happens inside a run: experiments, training, events, checkpoints. Knows nothing of Prefect."""

__version__ = "0.1.0"

"""The Metrics server: experiments, their metrics and annotations, over HTTP."""

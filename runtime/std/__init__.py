"""The standard modules: what experiment files are made of."""

"""Commands for users: ``python -m tb.runs.NAME``."""

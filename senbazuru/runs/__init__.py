"""Commands for users: ``python -m senbazuru.runs.NAME``."""

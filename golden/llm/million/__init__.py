"""MILLION on a model: its K, V and queries as requests, and its packs."""

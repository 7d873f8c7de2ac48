"""Outliers of a token: top-k trees, their units, and the outlier unit."""

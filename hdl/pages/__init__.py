"""A block's page and its picture."""

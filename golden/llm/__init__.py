"""Language models as their checkpoints state them."""

"""The unit CACHE: K and V in a paged cache, and attention over them."""

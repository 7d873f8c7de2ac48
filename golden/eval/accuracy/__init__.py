"""The tables of docs/accuracy.md: ``python -m golden.eval.accuracy`` (``make accuracy``).

``tables``: which rows there are and what the papers say of them; ``bench``: runs a row, once;
``report``: the rows that are there; ``page`` and ``plots``: what is written of them.
"""

"""The tables of docs/accuracy.md: ``python -m golden.llm.eval.accuracy`` (``make accuracy``).

- ``tables``: the rows, and what the papers say of them
- ``bench``: runs a row, once
- ``report``: the rows that exist
- ``page`` and ``plots``: write them
"""

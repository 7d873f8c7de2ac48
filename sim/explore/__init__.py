"""``python -m sim.explore --model M``: every chip and scheme side by side, as a table and a page.

- ``grid``: the points, as lists of chips, sizes, lanes, ports and bandwidths
- ``measure``: computes a point; what ``sim.run`` prints as JSON, or why the chip refuses
- ``kept``: points on disk, which two runs may share
- ``accuracy``: rows of golden.llm.eval for the scheme of a chip
- ``figures``: the figures of a point, and where each comes from
- ``commands``: command lines that build, simulate and evaluate a point
- ``table`` and ``page``: show them
"""

"""MILLION's accuracy next to its paper's: ``python -m golden.llm.reports.million``.

- ``tables``: the rows and the paper's figures
- ``run``: runs rows in parts, each part once
- ``channels``: deviations of the channels of K and V
- ``stats``: perplexities and paired differences of the rows
- ``claims``: what the paper says
- ``page``: writes the sections of docs/accuracy.md
"""

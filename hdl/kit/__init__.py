"""The files of ``python -m hdl.build NAME --kit``: each part is a function of the description."""

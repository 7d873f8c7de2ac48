"""The tables of docs/area.md, by system.

Each module has ``TABLES``: name -> function of the command's options that returns the sections.
"""

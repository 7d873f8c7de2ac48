"""A block in Verilator: its build, its run, what both keep, and their waves."""

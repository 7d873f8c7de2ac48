"""The phases of the functional unit."""

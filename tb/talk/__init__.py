"""A language model on the Verilated accelerator: ``python -m tb.talk``."""

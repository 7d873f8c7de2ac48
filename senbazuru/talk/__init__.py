"""A language model on the Verilated accelerator: ``python -m senbazuru.talk``."""

"""Verilated models with a main program in C++, for runs too long for cocotb."""

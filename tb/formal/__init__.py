"""Proofs of blocks with small state, by SymbiYosys: ``python -m tb.formal`` runs them all."""

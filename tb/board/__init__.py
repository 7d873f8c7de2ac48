"""Routed netlists of boards, driven at their pins."""

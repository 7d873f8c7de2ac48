"""Lanes of other number formats, with the streams of a selecting lane's dense path."""

"""A matrix unit and FP16 words: what the chips with engines for codes are compared with."""

from sim.matrix import MatrixEngine


class Matrix(MatrixEngine):
    """Nothing but ``sim.matrix``."""

    name = "matrix"

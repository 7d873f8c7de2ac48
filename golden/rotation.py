"""Orthogonal matrices of any width whose entries are equal in magnitude, or nearly."""

import math

import torch
from torch import Tensor

_RADIX = 64  # largest matrix that a fast transform multiplies by in one step, if it has the choice
_PALEY = 128  # largest of Paley's matrices: each costs its order in products per element


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


def paley(order: int) -> Tensor | None:
    """A Hadamard matrix by Paley's constructions: (order, order) of +-1 float64, or None.

    Q is (q, q) with q prime. Q[i, j] is 0 if i = j modulo q, 1 if i - j is a square modulo q, and
    -1 otherwise. C and S have Q inside a border of 1; C is symmetric and S is skew.

        order = q + 1,        q = 3 mod 4:  I + S
        order = 2 (q + 1),    q = 1 mod 4:  C x [[1, 1], [1, -1]] + I x [[1, -1], [-1, -1]]

    Source: R. E. A. C. Paley, On orthogonal matrices, 1933.
    """
    q = order - 1
    double = not (order % 4 == 0 and _is_prime(q))
    if double:
        q = order // 2 - 1
        if order % 2 or q % 4 != 1 or not _is_prime(q):
            return None
    squares = {i * i % q for i in range(1, q)}
    character = torch.tensor([0.0, *(1.0 if i in squares else -1.0 for i in range(1, q))])
    i = torch.arange(q)
    core = torch.zeros(q + 1, q + 1, dtype=torch.float64)
    core[1:, 1:] = character[(i[:, None] - i) % q]
    core[0, 1:] = 1
    core[1:, 0] = 1 if double else -1
    one = torch.eye(q + 1, dtype=torch.float64)
    if not double:
        return one + core
    plus = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    minus = torch.tensor([[1.0, -1.0], [-1.0, -1.0]], dtype=torch.float64)
    return torch.kron(core, plus) + torch.kron(one, minus)


def hadamard(order: int) -> Tensor:
    """Sylvester's matrix of a power of two: (order, order) of +-1 float64."""
    found = torch.ones(1, 1, dtype=torch.float64)
    while len(found) < order:
        found = torch.cat([torch.cat([found, found], 1), torch.cat([found, -found], 1)])
    return found


def factors(width: int) -> tuple[int, int]:
    """(first, second): width = first * second, second a power of two.

    first is 1 for a power of two. Otherwise it is the odd part of width times the fewest factors 2
    for which ``paley`` has a Hadamard matrix, up to 128. If there is none, it is the odd part.
    """
    odd = width
    while odd % 2 == 0:
        odd //= 2
    first = odd
    while 1 < first <= _PALEY and width % first == 0:
        if paley(first) is not None:
            return first, width // first
        first *= 2
    return odd, width // odd


def small_matrix(width: int, generator: torch.Generator) -> Tensor:
    """M of ``Rotation``: (m, m) float64, orthogonal."""
    first, _ = factors(width)
    known = paley(first) if first > 1 else torch.ones(1, 1, dtype=torch.float64)
    if known is not None:
        return known / first**0.5
    q, r = torch.linalg.qr(torch.randn(first, first, generator=generator, dtype=torch.float64))
    return q * r.diagonal().sign()


class Rotation:
    """x -> x R on the last axis, R = D (M x H) (width, width) orthogonal, x: Kronecker product.

    width = m * 2**k.

    H: Sylvester's Hadamard matrix of order 2**k over 2**(k / 2), a fast Walsh-Hadamard transform
        of radix up to 64
    M: Hadamard matrix by ``paley`` over sqrt(m); m is the odd part of the width with as few factors
        2 as give it one
    D: diagonal of signs, or none

    Examples are 576 = 36 * 16 and 1536 = 12 * 128. All entries of R are then equal in magnitude, as
    in QuaRot. If there is no such matrix, m is the odd part itself. M is then a random orthogonal
    matrix (QR of a Gaussian one, uniformly distributed).
    """

    def __init__(self, width: int, small: Tensor, signs: Tensor | None = None) -> None:
        """small: M (m, m) float64; signs: (width,) of +-1 of any type."""
        rest = width // len(small)
        last = min(rest, _RADIX)
        steps, rest = [hadamard(last) / last**0.5], rest // last
        while rest > 1 and rest * len(small) > _RADIX:
            order = min(rest, _RADIX)
            steps.append(hadamard(order) / order**0.5)
            rest //= order
        first = hadamard(rest).to(small.device) / rest**0.5
        steps.append(torch.kron(small.contiguous(), first))
        self.width, self.signs = width, signs
        self._steps = [step.to(small.device) for step in steps if len(step) > 1]

    def __call__(self, x: Tensor) -> Tensor:
        if self.signs is not None:
            x = x * self.signs.to(x)
        return self._turn(x, self._steps)

    def inverse(self, x: Tensor) -> Tensor:
        """x R^T: takes back what ``__call__`` does."""
        x = self._turn(x, [step.t() for step in self._steps])
        return x if self.signs is None else x * self.signs.to(x)

    def _turn(self, x: Tensor, steps: list[Tensor]) -> Tensor:
        shape, behind = x.shape, 1
        for step in steps:
            matrix = step.to(x)
            if behind == 1:
                x = x.reshape(-1, len(step)) @ matrix
            else:
                x = matrix.t() @ x.reshape(-1, len(step), behind)
            behind *= len(step)
        return x.reshape(shape)

"""The errors of a matrix to the one that was quantized. Source: QET, section 4.1, "Metrics"."""

import dataclasses

from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Errors:
    """mre: mean of ``|x - x'| / |x|`` over the elements that are not 0, and 0 if all are.

    zeros: elements that are 0, which ``mre`` leaves out. The paper does not say what they count.
    """

    mae: float
    mre: float
    mse: float
    zeros: int


def errors(matrix: Tensor, restored: Tensor) -> Errors:
    """Measures the errors of ``restored`` to ``matrix``, in float64."""
    exact = matrix.double()
    error = (exact - restored.double()).abs()
    counted = exact != 0
    relative = (error[counted] / exact[counted].abs()).mean() if bool(counted.any()) else 0.0
    return Errors(
        mae=float(error.mean()),
        mre=float(relative),
        mse=float((error**2).mean()),
        zeros=int((~counted).sum()),
    )

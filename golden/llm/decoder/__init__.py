"""A decoder as the ``config.json`` of transformers states it. Pure Python.

golden and the simulator read configurations here alone, and every field is of one of four kinds:

- read: it gives a field of ``Decoder``
- without effect on what a model computes: ``reading.NO_EFFECT``, and what a kind calls ``unread``
- accepted at the value that changes nothing: null, and those of ``reading.NEUTRAL``
- refused: all others. A field that nobody reads may be what makes the model another one.
"""

from golden.llm.decoder.description import Decoder
from golden.llm.decoder.gguf import check_gguf
from golden.llm.decoder.kinds import INSIDE, KINDS

__all__ = ["ARCHITECTURES", "KINDS", "Decoder", "check_gguf"]

ARCHITECTURES = tuple(sorted((*KINDS, *INSIDE)))  # each model_type that is read

"""QET on the tensors of a model: ``python -m golden.llm.qet``."""

"""Language models: checkpoints, what a method does to them, and what measures it.

No room of a system imports this package. ``kllm``, ``million``, ``oaken``, ``qet`` and ``vqllm``
hold what a system does with a model: packs, profiles, references.
"""

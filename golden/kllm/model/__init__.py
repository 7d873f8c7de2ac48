"""A whole LLaMA-like model as programs and images of the KLLM accelerator (docs/talk.md).

| module | what it does |
|---|---|
| layout | sizes of a model, and where its memories hold what: pure Python |
| program | ``step_program``, ``pass_program``: commands that take some tokens through the model |
| quantized | layers, head and embedding of a checkpoint, quantized |
| compiler | ``compile_model``: the memories |
| host | ``ModelHost``: runs programs on the golden machine and plays the host |
| pack | ``python -m golden.llm.pack --all``: the memories as files, and back |

    LOAD of the tokens' embedding rows; the layers; final norm, head, READ of the logits or TOP_K

A step is one program for all tokens and positions, which the chip runs from its memory. A pass is
for a host that reads the logits: its program names the tokens' rows and those of their angles.
"""

"""A whole LLaMA-like model as programs and images of the KLLM accelerator (docs/talk.md).

| module | what it does |
|---|---|
| layout | sizes of a model, and where its memories hold what: pure Python |
| program | ``pass_program``: the commands that take some tokens through the model: pure Python |
| quantized | layers, head and embedding of a checkpoint, quantized |
| compiler | ``compile_model``: the memories |
| host | ``ModelHost``: runs programs on the golden machine and plays the host |
| pack | ``python -m golden.llm.pack --all``: the memories as files, and back |

A pass takes ``tokens`` new tokens after ``context`` cached ones. Its parts are separated by the
host's append of K and V:

    part 0         LOAD of the tokens' embedding rows; layer 0 up to READ_SLOT of K and V
    part i         layer i - 1 from the scores on; layer i up to READ_SLOT of K and V
    last part      the last layer from the scores on; final norm, head and READ of the logits
"""

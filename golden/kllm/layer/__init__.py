"""A layer of LLaMA's kind as programs and images of the KLLM accelerator (docs/kllm-layer.md).

| module | what it does |
|---|---|
| shape | sizes, kind and layout options: pure Python |
| weights | real weights of a layer of a model, as the accelerator computes |
| vector_norm | norms of rows, by commands that each do something else: pure Python |
| program | ``layer_program`` makes the program, from the shape alone: pure Python |
| quantized | ``quantize_layer`` trains codebooks, finds weight indices and K's and V's thresholds |
| compiler | ``compile_layer`` adds codebooks and weights to a program: its memories |
| host | ``run_layer`` runs it on the golden machine and plays the host |

The order of the commands, from the table of golden.kllm.flow:

    x -> QUANTIZE (RMS) -> q, k, v -> APPEND v, ROTARY, APPEND k, ATTEND -> QUANTIZE -> o -> + x
      -> QUANTIZE (RMS) -> gate, up -> QUANTIZE -> GLU -> QUANTIZE -> down -> + -> READ

gamma of the norms before matmuls is folded into the weights before k-means, the scale of scores
into those of q. docs/kllm-layer.md says what other layers have.
K and V of all sequences are in Oaken's pages. The host's batch says of which sequence a token is.
"""

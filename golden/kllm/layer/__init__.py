"""One LLaMA decoder layer as programs and images of the KLLM accelerator (docs/kllm-layer.md).

| module | what it does |
|---|---|
| shape | sizes and layout options |
| chip | what the accelerator can run: pure Python |
| weights | real weights of a layer of a model |
| program | ``layer_program`` makes the program, from sizes alone: pure Python |
| reference | the layer in float64, and what a layer of a model sees |
| quantized | ``quantize_layer`` trains codebooks, finds weight indices and K's and V's thresholds |
| compiler | ``compile_layer`` adds codebooks and weights to a program: its memories |
| host | ``run_layer`` runs it on the golden machine and plays the host |

The order of the commands, from the table of golden.kllm.flow:

    x -> QUANTIZE (RMS) -> q, k, v -> APPEND v, ROTARY, APPEND k, ATTEND -> QUANTIZE -> o -> + x
      -> QUANTIZE (RMS) -> gate, up -> QUANTIZE -> GLU -> QUANTIZE -> down -> + -> READ

gamma of both norms is folded into the weights before k-means, 1 / sqrt(head_size) into those of q.
K and V of all sequences are in Oaken's pages. The host's batch says of which sequence a token is.
"""

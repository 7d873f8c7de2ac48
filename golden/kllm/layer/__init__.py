"""One LLaMA decoder layer as programs and images of the KLLM accelerator (docs/kllm-layer.md).

| module | what it does |
|---|---|
| shape | sizes and layout options |
| chip | what the accelerator can run: pure Python |
| weights | real weights of a layer of a model |
| program | ``layer_program`` makes the programs, from sizes alone: pure Python |
| reference | the layer in float64, and what a layer of a model sees |
| quantized | ``quantize_layer`` trains codebooks and finds weight indices |
| compiler | ``compile_layer`` adds codebooks and weights to a program: its memories |
| host | ``run_layer`` runs them on the golden machine and plays the host |

The order of the commands, from the table of golden.kllm.flow:

    x -> QUANTIZE (RMS) -> q, k, v -> ROTARY -> QUANTIZE k, v -> READ_SLOT      part 0
         the host appends k and v to the cache images
    scores -> SOFTMAX -> times V's scales -> QUANTIZE_INTEGER -> times V        part 1
      -> QUANTIZE -> o -> + x -> QUANTIZE (RMS) -> gate, up -> QUANTIZE -> GLU
      -> QUANTIZE -> down -> + -> READ

gamma of both norms is folded into the weights before k-means, 1 / sqrt(head_size) into those of q.
Cached K and V have no outliers. K of a KV head is a weight image of K = head_size, N = tokens. Its
output scales are K's token scales. V is an image of K = tokens, N = head_size with scales 1.0. V's
token scales multiply the probabilities.
"""

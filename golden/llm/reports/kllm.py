"""Measures KLLM's quantization on a real model: ``python -m golden.llm.reports.kllm``.

Codebooks are trained on the calibration text, errors are measured on the evaluation text.
"""

import dataclasses
import sys
import time
from pathlib import Path

from golden import command
from golden.llm import text


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    parser = command.Parser(
        prog="python -m golden.llm.reports.kllm", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--model", type=Path, help="GGUF file or transformers folder")
    parser.add_argument("--layers", type=int, nargs="+", default=[0, 1, 15, 29])
    parser.add_argument("--calibration", type=int, default=256, help="tokens")
    parser.add_argument("--evaluation", type=int, default=64, help="tokens")
    parser.add_argument("--share", type=float, default=0.005, help="outliers on each side")
    options = parser.parse_args(arguments)
    from golden.llm import checkpoint as reader  # torch, after the arguments
    from golden.llm.capture import capture_inputs
    from golden.llm.reports.layer_error import layer_error

    start = time.monotonic()
    try:
        reader.check_layers(options.layers, reader.layer_count(options.model))
        checkpoint = reader.load(options.model)
        reader.check_layers(options.layers, checkpoint.model.config.num_hidden_layers)
        names = [
            f"model.layers.{layer}.{linear_name}"
            for layer in options.layers
            for linear_name in ("self_attn.q_proj", "mlp.down_proj")
        ]
        print(f"loaded in {time.monotonic() - start:.1f} s")
        ids = reader.tokens(checkpoint, text.CALIBRATION, options.calibration)
        calibration = capture_inputs(checkpoint.model, ids, names, gradients=True)
        ids = reader.tokens(checkpoint, text.EVALUATION, options.evaluation)
        evaluation = capture_inputs(checkpoint.model, ids, names)
        print(f"captured after {time.monotonic() - start:.1f} s")
        print("layer | setting | Fisher | error | weights | tokens | arithmetic | not nearest")
        print("--- | --- | --- | --- | --- | --- | --- | ---")
        for name in names:
            for bits_a in (4, 3):
                for fisher in (False, True):
                    trained = dataclasses.replace(
                        calibration[name],
                        gradient=calibration[name].gradient if fisher else None,
                    )
                    error = layer_error(trained, evaluation[name], bits_a, share=options.share)
                    print(
                        f"{name.removeprefix('model.layers.')} | W4A{bits_a} | "
                        f"{'yes' if fisher else 'no'} | {error.total:.4f} | {error.weight:.4f} | "
                        f"{error.tokens:.4f} | {error.arithmetic:.1e} | {error.mismatch:.2e}"
                    )
    except (reader.CheckpointError, ValueError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(f"done in {time.monotonic() - start:.1f} s")
    return 0


if __name__ == "__main__":
    command.run("golden.llm.reports.kllm", main)

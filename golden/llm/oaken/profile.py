"""Oaken's offline thresholds from calibration text: ``python -m golden.llm.oaken.profile -o FILE``.

``golden.oaken.thresholds`` has the rules.
"""

import contextlib
import sys
from pathlib import Path

from golden import command
from golden.config import ConfigError
from golden.files import claimed


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr."""
    parser = command.Parser(
        prog="python -m golden.llm.oaken.profile", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--model", type=Path, help="GGUF file or transformers folder")
    parser.add_argument(
        "--text", type=Path, help="calibration text (plain, or .jsonl); ours if none"
    )
    parser.add_argument("--ratios", default="4/90/6", help="outer/middle/inner in percent")
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128, help="of a window")
    parser.add_argument("--pre-rope", action="store_true", help="K before RoPE")
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args(arguments)
    from golden.fp16.ops import float_from_bits
    from golden.llm import checkpoint  # torch, after the arguments
    from golden.llm.capture import capture_kv
    from golden.oaken.groups import Ratios
    from golden.oaken.thresholds import KV_NAMES, ProfileError, profile_kv

    outputs = contextlib.ExitStack()
    try:
        outputs.enter_context(claimed(options.output))
        ratios = Ratios.parse(options.ratios)
        command.check_least(options, {"windows": 1, "tokens": 2})
        text = checkpoint.read_text(options.text)
        loaded = checkpoint.load(options.model)
        parts = checkpoint.windows(loaded, text, options.windows, options.tokens)
        made = {
            "model": options.model.name if options.model else "SmolLM2-135M",
            "text": options.text.name if options.text else "golden.llm.text.CALIBRATION",
            "tokens per window": options.tokens,
        }
        captured = (capture_kv(loaded.model, ids, options.pre_rope) for ids in parts)
        profile = profile_kv(captured, ratios, options.pre_rope, made)
        profile.save(options.output)
    except (checkpoint.CheckpointError, ConfigError, ProfileError, OSError) as error:
        print(f"profile: {error}", file=sys.stderr)
        return 2
    finally:
        outputs.close()
    spread = float_from_bits(profile.intervals[:, :, 0])
    print(f"{options.output}: {profile.layers} layers, {ratios}, {profile.made['windows']} windows")
    for kv, name in enumerate(KV_NAMES):
        low, high = (float(spread[:, kv, side].abs().max()) for side in (0, 1))
        print(f"{name.upper()}: outermost bounds up to -{low:.4g} and {high:.4g}")
    return 0


if __name__ == "__main__":
    command.run("golden.llm.oaken.profile", main)

"""``python -m golden.llm.letters --family NAME --text FILE -o DIR``: trains a model of letters.

A decoder of 1 to 3 million parameters that reads characters, so that methods are seen on more
than one trained network of more than one family. Writes a folder as transformers does, for
``golden.llm.eval --model DIR``.

AdamW on windows of 256 characters at random places of the text; the rate falls as a cosine. The
same text, seed and steps give the same model on the same machine with the same threads. Every 50
steps the work is kept in DIR.partial, from where the same command goes on after a stop.
"""

import argparse
import dataclasses
import hashlib
import json
import math
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from golden import command

if TYPE_CHECKING:
    import torch

WINDOW = 256
_BATCH = 16
_KEPT = 50  # steps after which the work is kept
_RATE, _DECAY, _BETAS, _WARM = 3e-3, 0.1, (0.9, 0.95), 0.05
_WORDS = 96  # characters, the most frequent ones, and <unk>
_UNKNOWN, _SPACE = "<unk>", "▁"
_SIZES: dict[str, Any] = {
    "hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 6, "head_dim": 32,
    "num_key_value_heads": 2, "max_position_embeddings": 2 * WINDOW, "tie_word_embeddings": True,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
# What a family's model has beside these sizes: windows, two norms on each side, experts.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"intermediate_size": 512},
    "gemma3_text": {
        "intermediate_size": 512, "sliding_window": 64, "query_pre_attn_scalar": 32,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention",
                        "full_attention"],
    },
    "qwen3_moe": {
        "intermediate_size": 512, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 192, "norm_topk_prob": True,
    },
}  # fmt: skip


def pieces_of(text: str) -> list[str]:
    """The vocabulary: <unk>, and the most frequent characters in the order of their codes."""
    counted = Counter("".join(text.split()))
    found = sorted(letter for letter, _ in counted.most_common(_WORDS - 2))
    return [_UNKNOWN, _SPACE, *found]


def build(family: str, words: int, seed: int) -> Any:
    """A model of transformers with weights of the seed."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    config = AutoConfig.for_model(family, vocab_size=words, **_SIZES, **FAMILIES[family])
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


@dataclasses.dataclass
class Training:
    """A model at work, and what of it is kept.

    ids: (characters,) token ids of the text
    file: where the work is kept
    """

    model: Any
    ids: "torch.Tensor"
    steps: int
    seed: int
    file: Path

    def __post_init__(self) -> None:
        import torch

        self.names = dict(self.model.named_parameters())
        self.optimizer = torch.optim.AdamW(
            self.names.values(), lr=_RATE, betas=_BETAS, weight_decay=_DECAY
        )

    def run(self, say: Any) -> float:
        """Trains; returns the mean loss in nats of the last steps."""
        first = self._restore()
        losses: list[float] = []
        for step in range(first, self.steps):
            losses.append(self._step(step))
            if (step + 1) % _KEPT == 0 or step + 1 == self.steps:
                recent = losses[-_KEPT:]
                say(f"step {step + 1} of {self.steps}, loss {sum(recent) / len(recent):.3f}")
                self._keep(step + 1)
        last = losses[-_KEPT:]
        return sum(last) / len(last) if last else math.nan

    def _step(self, step: int) -> float:
        import torch

        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        places = torch.randint(0, len(self.ids) - WINDOW, (_BATCH,), generator=generator)
        batch = torch.stack([self.ids[place : place + WINDOW + 1] for place in places.tolist()])
        self.optimizer.param_groups[0]["lr"] = _RATE * _share(step, self.steps)
        logits = self.model(batch[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.names.values(), 1.0)
        self.optimizer.step()
        return float(loss.detach())

    def _keep(self, done: int) -> None:
        from golden.files import replacing
        from golden.llm.eval.calibration import save_tensors

        tensors = {}
        for name, value in self.names.items():
            tensors[f"value.{name}"] = value.detach().clone()
            for moment, each in self.optimizer.state[value].items():
                tensors[f"{moment}.{name}"] = each.clone()
        with replacing(self.file) as part:
            save_tensors(part, tensors, {"step": str(done)})

    def _restore(self) -> int:
        """Takes up what is kept; the steps that it has."""
        import torch
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.file, framework="pt") as file:
                done = int((file.metadata() or {})["step"])
                kept = {key: file.get_tensor(key) for key in file.keys()}
        except (FileNotFoundError, SafetensorError, KeyError, ValueError):
            return 0
        with torch.no_grad():
            for name, value in self.names.items():
                value.copy_(kept[f"value.{name}"])
                moments = ("step", "exp_avg", "exp_avg_sq")
                self.optimizer.state[value] = {
                    moment: kept[f"{moment}.{name}"] for moment in moments
                }
        return min(done, self.steps)


def _share(step: int, steps: int) -> float:
    """Returns the share of the rate at a step: it rises, then falls as a cosine to a tenth."""
    warm = max(1, round(_WARM * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.55 + 0.45 * math.cos(math.pi * (step - warm) / max(1, steps - warm))


def make(options: argparse.Namespace, say: Any) -> None:
    """CheckpointError, ConfigError, OSError in one line: the text, the folder, a number."""
    import torch

    from golden.config import ConfigError
    from golden.llm.checkpoint import CheckpointError, read_text
    from golden.llm.eval.llama2c import tokenizer_of

    text = read_text(options.text)
    assert text is not None
    text = text[options.skip :]
    pieces = pieces_of(text)
    tokenizer = tokenizer_of(pieces)
    ids = torch.tensor(tokenizer(text)["input_ids"], dtype=torch.int64)
    if len(ids) <= WINDOW:
        raise CheckpointError(
            f"{options.text} has {len(ids)} characters, more than {WINDOW} are needed"
        )
    if options.steps < 1:
        raise ConfigError(f"steps must be at least 1, not {options.steps}")
    model = build(options.family, len(pieces), options.seed)
    count = sum(each.numel() for each in model.parameters())
    say(f"{options.family}: {count} parameters, {len(ids)} characters, {len(pieces)} kinds")
    known = {
        "family": options.family, "steps": options.steps, "seed": options.seed,
        "text": hashlib.sha256(text.encode()).hexdigest(), "config": model.config.to_dict(),
    }  # fmt: skip
    digest = hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()
    partial = options.output.with_name(f"{options.output.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    training = Training(
        model, ids, options.steps, options.seed, partial / f"{digest[:16]}.safetensors"
    )
    loss = training.run(say)
    model.eval().save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)
    shutil.rmtree(partial)
    ending = "" if math.isnan(loss) else f", loss {loss:.3f}"
    say(f"{options.output}: {options.family} of {count} parameters{ending}")


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0, or 2 after one line on stderr. Progress goes to stderr."""
    parser = command.Parser(
        prog="python -m golden.llm.letters", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--family", choices=sorted(FAMILIES), default="llama")
    parser.add_argument("--text", type=Path, required=True, help="plain, or .jsonl")
    parser.add_argument("--skip", type=int, default=0, help="characters to leave out first")
    parser.add_argument("--steps", type=int, default=600, help="of 16 windows of 256 characters")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to write")
    options = parser.parse_args(arguments)
    from golden.config import ConfigError
    from golden.files import claimed_folder
    from golden.llm.checkpoint import CheckpointError  # torch, after the arguments
    from golden.llm.eval.command import check_seed, quiet

    start = time.monotonic()
    quiet()
    try:
        check_seed(options.seed)
        with claimed_folder(options.output):
            make(options, command.elapsed(lambda line: print(line, file=sys.stderr)))
    except (CheckpointError, ConfigError, OSError) as error:
        print(f"letters: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2
    print(f"{options.output}: {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    command.run("golden.llm.letters", main)

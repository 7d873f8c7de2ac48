"""The layout of published AQLM checkpoints, against the package ``aqlm``, and refusals.

Shown to fail:

- negative codes by their magnitude;
- another exponent;
- no scales of rows;
- codebooks in another order.
"""

import pytest
import torch

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.vqllm.aqlm import from_published, layers_of, load_published, to_published
from tests.vqllm.matrices import matrix_of

# Codebooks, bits, elements of a vector: the checkpoints 2x8 and 1x16, and other counts.
LAYOUTS = [(2, 8, 8), (1, 16, 8), (2, 12, 8), (4, 5, 4)]


def published(stages: int, bits: int, size: int, seed: int = 5) -> dict[str, torch.Tensor]:
    """Random tensors of a layer as a checkpoint stores them; FP16 holds every entry exactly."""
    g = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 1 << bits, (12, 7, stages), generator=g)
    codes[codes >= 1 << bits - 1] -= 1 << bits
    books = torch.randn(stages, 1 << bits, 1, size, generator=g) * 192
    return {
        "codes": codes.to(torch.int8 if bits <= 8 else torch.int16),
        "codebooks": (books.round() + 0.0).half() / 64,
        "scales": (torch.rand(12, 1, 1, 1, generator=g) + 0.01).half(),
    }


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of its import
@pytest.mark.parametrize(("stages", "bits", "size"), LAYOUTS)
def test_is_what_the_package_decodes(stages, bits, size):
    """Bit for bit: the package's sum in float64 is exact, and is rounded to FP16 once."""
    utils = pytest.importorskip("aqlm.utils")
    layer = published(stages, bits, size)
    matrix = from_published(**layer)
    codes = utils.unpack_int_data(layer["codes"], bits)
    books = layer["codebooks"].double()
    plain = utils._dequantize_weight(codes, books, None)
    assert torch.equal(matrix.dequantized(), bits_from_float(plain * 2.0**-matrix.exponent))
    whole = utils._dequantize_weight(codes, books, layer["scales"].double())
    rounded = float_from_bits(bits_from_float(plain * 2.0**-matrix.exponent), FP16)
    scale = layer["scales"].double().flatten()[:, None]
    assert torch.equal(matrix.real(), rounded * 2.0**matrix.exponent * scale)
    assert torch.allclose(matrix.real(), whole, rtol=2**-10, atol=1e-4)


@pytest.mark.parametrize(("stages", "bits", "size"), LAYOUTS)
def test_is_what_plain_loops_decode(stages, bits, size):
    layer = published(stages, bits, size)
    real = from_published(**layer).real()
    for row in range(12):
        for group in range(7):
            total = torch.zeros(size, dtype=torch.float64)
            for stage in range(stages):
                code = int(layer["codes"][row, group, stage])
                code += (code < 0) << bits
                total += layer["codebooks"][stage, code, 0].double()
            found = real[row, group * size : (group + 1) * size]
            expected = total * float(layer["scales"][row])
            assert torch.allclose(found, expected, rtol=2**-10, atol=2**-10)


@pytest.mark.parametrize("scaled", [False, True])
def test_ours_in_their_layout_and_back(scaled):
    matrix = matrix_of("two stages", scaled=scaled)
    layer = to_published(matrix)
    assert layer["codes"].dtype == torch.int8
    back = from_published(**layer)
    assert torch.equal(back.codes, matrix.codes)
    assert torch.equal(back.real(), matrix.real())
    with pytest.raises(ConfigError, match=r"^codebooks must be of the whole matrix, not of 2 x 3"):
        to_published(matrix_of("ragged tiles"))


def test_a_file_of_layers(tmp_path):
    from safetensors.torch import save_file

    file = tmp_path / "model.safetensors"
    layers = {"a.q_proj": published(2, 8, 8), "b.up_proj": published(1, 16, 8)}
    tensors = {f"{name}.{part}": each for name, own in layers.items() for part, each in own.items()}
    save_file({**tensors, "norm.weight": torch.ones(3), "c.codes": torch.zeros(1)}, file)
    assert layers_of(file) == ["a.q_proj", "b.up_proj"]
    found = load_published(file, "b.up_proj")
    assert found.shape.vq.entries == 65536
    assert torch.equal(found.real(), from_published(**layers["b.up_proj"]).real())
    with pytest.raises(ConfigError, match=r"^layer must be one of a.q_proj, b.up_proj, not 'c'$"):
        load_published(file, "c")


def _changed(**fields):
    return {**published(2, 8, 8), **fields}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"codebooks": torch.zeros(2, 256, 8)}, "codebooks must have 4 dimensions, not 3"),
        ({"codebooks": torch.zeros(2, 256, 8, 8)}, "out group size must be 1, not 8"),
        ({"codebooks": torch.zeros(2, 200, 1, 8)}, "VqShape.entries must be a power of two"),
        ({"codebooks": torch.zeros(2, 256, 1, 24)}, "VqShape.size must be 1..16, not 24"),
        ({"codebooks": torch.zeros(3, 256, 1, 8)}, r"codes must be \(out, in, 3\), not \(12, 7, 2"),
        ({"codebooks": torch.zeros(2, 256, 1, 8).int()}, "codebooks must be floating-point, not"),
        ({"codebooks": torch.full((2, 256, 1, 8), torch.nan)}, "codebooks must be finite"),
        ({"codes": torch.zeros(12, 7, 2).short()}, "codes must be torch.int8 for 256 entries, not"),
        ({"scales": torch.ones(12)}, r"scales must be \(12, 1, 1, 1\), not \(12,\)"),
        ({"scales": torch.full((12, 1, 1, 1), 1e6)}, "scales must be within FP16, not 1e.06"),
        ({"codebooks": torch.zeros(2, 32, 1, 8), "codes": torch.full((12, 7, 2), 16).char()},
         "codes must be -16..15, not 16"),
    ],
)  # fmt: skip
def test_refused(fields, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        from_published(**_changed(**fields))

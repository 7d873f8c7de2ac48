"""golden.qet.file and the command line: every bit comes back, every damage is one line.

Shown to fail:

- sections read without their last byte;
- an exponent read without its sign;
- a code beyond its codebook, entries and ranges beyond 2, an exponent that no matrix has;
- a checksum that leaves out the sections;
- errors relative to the mean element.
"""

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch

from golden.config import ConfigError
from golden.llm.qet import __main__ as command
from golden.llm.qet.source import matrix_of
from golden.qet import file
from golden.qet.config import QetShape, Stage
from golden.qet.file import MAGIC, QetFileError
from golden.qet.matrix import quantize
from golden.qet.metrics import errors

SHAPES = [
    QetShape(rows=33, columns=65, element_bits=16, by_group=True,
             stages=(Stage(levels=3, entries=5), Stage(levels=0, entries=3))),
    QetShape(rows=1, columns=64, stages=(Stage(levels=5, entries=1),), entry_bits=0, group=2),
    QetShape(rows=100, columns=63, entry_bits=4,
             stages=(Stage(levels=2, entries=17), Stage(levels=1, entries=1), Stage(levels=0))),
    # No section fills its last byte.
    QetShape(rows=3, columns=5, group=1, entry_bits=7, stages=(Stage(levels=0, entries=3),)),
]  # fmt: skip


def quantized(shape, scale=40.0):
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(shape.rows, shape.columns, generator=generator) * scale
    return quantize(matrix, shape)


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "x.qet"
    file.write(path, quantized(SHAPES[0]), "x")
    return path


@pytest.mark.parametrize("scale", [0.01, 40.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_written_is_read(shape, scale, tmp_path):
    made = quantized(shape, scale)
    size = file.write(tmp_path / "x.qet", made, "a name")
    found, name = file.read(tmp_path / "x.qet")
    assert name == "a name"
    assert found.shape == shape
    assert torch.equal(found.dequantized(), made.dequantized())
    for one, other in zip(found.stages, made.stages, strict=True):
        assert torch.equal(one.codes, other.codes)
        assert torch.equal(one.entries, other.entries)
        assert torch.equal(one.ranges, other.ranges)
    assert found.exponent == made.exponent
    data = (tmp_path / "x.qet").read_bytes()
    assert len(data) == size
    header = 12 + int.from_bytes(data[8:12], "little")
    payload = size - header - 32
    assert shape.stored_bits <= 8 * payload < shape.stored_bits + 8 * 4 * len(shape.stages)


def test_values_are_packed_in_chunks(monkeypatch, tmp_path):
    file.write(tmp_path / "whole", quantized(SHAPES[0]))
    monkeypatch.setattr(file, "_CHUNK", 8)
    file.write(tmp_path / "parts", quantized(SHAPES[0]))
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "parts").read_bytes()
    found, _ = file.read(tmp_path / "parts")
    assert torch.equal(found.dequantized(), quantized(SHAPES[0]).dequantized())


def test_the_same_matrix_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        file.write(tmp_path / name, quantized(SHAPES[0]), "x")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def sealed(data: bytes) -> bytes:
    return data + hashlib.sha256(data).digest()


def with_header(path, change) -> bytes:
    """The file with another header and a right checksum."""
    data = path.read_bytes()
    length = int.from_bytes(data[8:12], "little")
    header = json.loads(data[12 : 12 + length])
    change(header)
    text = json.dumps(header).encode()
    return sealed(MAGIC + len(text).to_bytes(4, "little") + text + data[12 + length : -32])


def test_every_flipped_byte_is_found(written):
    data = written.read_bytes()
    for at in [*range(0, len(data), 37), len(data) - 1]:
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        written.write_bytes(damaged)
        with pytest.raises(QetFileError) as error:
            file.read(written)
        assert str(error.value).startswith(f"{written}: ")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("length", [0, 5, 8, 11, 12, 50, -33, -1])
def test_a_file_that_ends_early_is_refused(written, length):
    written.write_bytes(written.read_bytes()[:length])
    with pytest.raises(QetFileError, match=r"not a file of a QET matrix|it ends in|bytes, not the"):
        file.read(written)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda header: header.update(version=3), "version must be 2, not 3"),
        (lambda header: header["shape"].update(group=0), "QetShape.group must be 1..256, not 0"),
        (lambda header: header.pop("name"), "its header has no name or no sections"),
        (
            lambda header: header["sections"].insert(0, header["sections"].pop(1)),
            'section maps_0 must come, not "codes_0"',
        ),
        (lambda header: header.update(version=2.0), "version must be 2, not 2.0"),
        (lambda header: header.update(version=True), "version must be 2, not true"),
        (lambda header: header["sections"][3].__setitem__(0, "x\n"),
         'section ranges_0 must come, not "x\\n"'),
        (lambda header: header["sections"].insert(0, ["x", 0]), "it must have 9 sections, not 10"),
        (lambda header: header["sections"][0].__setitem__(1, True), "has no name or no sections"),
        (lambda header: header.update(more=1), 'its header must have no field "more"'),
        (lambda header: header.pop("shape"), "its header must have the field shape"),
        (lambda header: header.update(shape=[1]), "shape must be an object of JSON, not [1]"),
        (lambda header: header["shape"].pop("rows"), "shape must have the field rows"),
        (lambda header: header["shape"].update(seed=7), 'shape must have no field "seed"'),
        (lambda header: header["shape"].update(stages=3), "shape.stages must be a list, not 3"),
        (lambda header: header["shape"].update(stages=[3]),
         "shape.stages[0] must be an object of JSON, not 3"),
        (lambda header: header["shape"]["stages"][1].update(share=1),
         'shape.stages[1] must have no field "share"'),
        (lambda header: header["shape"].update(element_bits=16.0),
         "QetShape.element_bits must be 16 or 32, not 16.0"),
        (lambda header: header["shape"].update(entry_bits=0.0),
         "QetShape.entry_bits must be 2..16, not 0.0"),
    ],
)  # fmt: skip
def test_a_header_that_is_wrong_is_one_line(written, change, line):
    written.write_bytes(with_header(written, change))
    with pytest.raises(QetFileError) as error:
        file.read(written)
    assert str(error.value).startswith(f"{written}: ")
    assert str(error.value).endswith(line)
    assert "\n" not in str(error.value)


def test_a_name_is_shown_within_a_line(written, capsys):
    written.write_bytes(with_header(written, lambda header: header.update(name="a\x1b[2J\nb")))
    assert command.main(["report", str(written)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{written}: 'a\\x1b[2J\\nb'"


def test_a_code_beyond_its_codebook_is_refused(written):
    data = bytearray(written.read_bytes()[:-32])
    header = 12 + int.from_bytes(data[8:12], "little")
    sections = json.loads(data[12:header])["sections"]
    data[header + sections[0][1]] |= 7  # the first code of stage 0, of 3 bits, becomes 7
    written.write_bytes(sealed(bytes(data)))
    with pytest.raises(QetFileError, match=r"codes_0 must be 0\.\.4, not 7"):
        file.read(written)


def with_section(path, name, change) -> bytes:
    """The file with another section and a right checksum."""
    data = bytearray(path.read_bytes()[:-32])
    at = 12 + int.from_bytes(data[8:12], "little")
    for section, size in json.loads(data[12:at])["sections"]:
        if section == name:
            data[at : at + size] = change(bytes(data[at : at + size]))
        at += size
    return sealed(bytes(data))


@pytest.mark.parametrize(
    ("low", "step", "taken"),
    [
        (-(1 << 25), 4369, True),
        (-(1 << 25) - 1, 0, False),
        (1 << 25, 1, True),
        ((1 << 25) + 1, 0, False),
        (1 << 25, 2, False),
        (0, -1, False),
        (-(1 << 31), (1 << 31) - 1, False),
    ],
)
def test_a_range_beyond_two_is_refused(tmp_path, low, step, taken):
    path = tmp_path / "x.qet"
    file.write(path, quantized(SHAPES[2]), "x")
    both = b"".join(each.to_bytes(4, "little", signed=True) for each in (low, step))
    path.write_bytes(with_section(path, "ranges_1", lambda _: both))
    if taken:
        assert file.read(path)[0].stages[1].ranges.tolist() == [[low, step]]
        return
    with pytest.raises(QetFileError) as error:
        file.read(path)
    expected = f"ranges_1 must be within -2..2, not of low {low} and step {step}"
    assert str(error.value) == f"{path}: {expected}"


@pytest.mark.parametrize(
    ("bits", "word", "taken"),
    [(16, 0x4000, True), (16, 0xC001, False), (16, 0x7E00, False),
     (32, 0xC0000000, True), (32, 0x40000001, False), (32, 0xFF800000, False)],
)  # fmt: skip
def test_an_entry_beyond_two_is_refused(tmp_path, bits, word, taken):
    path = tmp_path / "x.qet"
    file.write(path, quantized(dataclasses.replace(SHAPES[1], element_bits=bits)), "x")
    change = with_section(
        path, "entries_0", lambda data: data[: -(bits // 8)] + word.to_bytes(bits // 8, "little")
    )
    path.write_bytes(change)
    if taken:
        file.read(path)
        return
    with pytest.raises(QetFileError, match=r"entries_0 must be within -2\.\.2"):
        file.read(path)


@pytest.mark.parametrize(("number", "exponent"), [(0, 16), (0, -9), (1, -127), (1, -128)])
def test_an_exponent_that_no_matrix_has_is_refused(tmp_path, number, exponent):
    path = tmp_path / "x.qet"
    file.write(path, quantized(SHAPES[number]), "x")
    byte = exponent.to_bytes(1, "little", signed=True)
    path.write_bytes(with_section(path, "exponent", lambda _: byte))
    with pytest.raises(QetFileError, match=rf"exponent must be .*, not {exponent}"):
        file.read(path)


def test_errors_leave_out_zeros():
    exact, other = torch.tensor([[0.0, 2.0, -8.0]]), torch.tensor([[1.0, 1.0, -6.0]])
    found = errors(exact, other)
    assert (found.mae, found.mre, found.mse, found.zeros) == (4 / 3, 0.375, 2.0, 1)
    assert errors(torch.zeros(2, 2), torch.ones(2, 2)).mre == 0.0


@pytest.fixture
def matrix(tmp_path):
    values = np.random.default_rng(5).normal(0.5, 0.16, (150, 70)).astype(np.float32)
    np.save(tmp_path / "x.npy", values)
    return values


def run(tmp_path, *arguments):
    return command.main([each.replace("@/", f"{tmp_path}/") for each in arguments])


def test_the_command_line(tmp_path, matrix, capsys):
    options = ["--ratio", "4", "--seed", "7", "-o", "@/x.qet"]
    assert run(tmp_path, "quantize", "@/x.npy", *options) == 0
    made = capsys.readouterr()
    assert "150 x 70 of FP32: " in made.err
    assert run(tmp_path, "restore", "@/x.qet", "-o", "@/y.npy") == 0
    restored = np.load(tmp_path / "y.npy")
    assert restored.dtype == np.float32
    assert restored.shape == matrix.shape
    assert run(tmp_path, "report", "@/x.qet", "--against", "@/x.npy") == 0
    shown = capsys.readouterr().out
    assert "58 columns are padding" in shown
    mse = float(((matrix.astype(np.float64) - restored) ** 2).mean())
    assert f"MSE {mse:.4g}" in shown
    assert shown.splitlines()[-1] == made.out.splitlines()[-1]
    assert float((tmp_path / "x.qet").stat().st_size) < matrix.nbytes / 4 + 1000


def test_the_command_line_keeps_fp16(tmp_path, matrix):
    np.save(tmp_path / "x.npy", matrix.astype(np.float16))
    assert run(tmp_path, "quantize", "@/x.npy", "--levels", "1", "-o", "@/x.qet") == 0
    assert run(tmp_path, "restore", "@/x.qet", "-o", "@/y.npy") == 0
    assert np.load(tmp_path / "y.npy").dtype == np.float16


@pytest.mark.parametrize("bits", [0, 10])
def test_what_one_far_element_drowns_is_counted(tmp_path, capsys, bits):
    """The grid ends 2**24 below the largest element. Shown to fail: nothing was said."""
    values = np.full((64, 64), 1e-3, np.float32)
    values[5, 6], values[7] = 1e6, 0
    np.save(tmp_path / "x.npy", values)
    options = ["--ratio", "2", "--entry-bits", str(bits), "-o", "@/x.qet"]
    assert run(tmp_path, "quantize", "@/x.npy", *options) == 0
    line = "4,031 elements are below 2**-4, the grid of the largest one, and count as 0"
    assert line in capsys.readouterr().out
    assert run(tmp_path, "report", "@/x.qet", "--against", "@/x.npy") == 0
    assert line in capsys.readouterr().out
    assert run(tmp_path, "report", "@/x.qet") == 0
    assert "count as 0" not in capsys.readouterr().out


def test_a_model_is_loaded_without_bars(tmp_path):
    """The refusal is the one line of stderr. Shown to fail: the bars of transformers."""
    name = "model.layers.0.self_attn.k_proj.weight@smollm2"
    arguments = ["quantize", name, "--ratio", "100", "-o", str(tmp_path / "x.qet")]
    plain = {key: value for key, value in os.environ.items() if key != "TQDM_DISABLE"}
    done = subprocess.run(
        [sys.executable, "-m", "golden.llm.qet", *arguments],
        capture_output=True, text=True, env=plain,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("golden.llm.qet: ratio must be at most ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["quantize", "@/x.npy", "--ratio", "40", "-o", "@/x.qet"], "ratio must be at most"),
        (["quantize", "@/x.npy", "--ratio", "0", "-o", "@/x.qet"], "Budget.ratio must be above 0"),
        (["quantize", "@/x.npy", "--levels", "6", "-o", "@/x.qet"], "Stage.levels must be 0..5"),
        (["quantize", "@/none.npy", "-o", "@/x.qet"], "No such file"),
        (["quantize", "@/flat.npy", "-o", "@/x.qet"], "must have rows and columns, not (7,)"),
        (["quantize", "@/double.npy", "-o", "@/x.qet"], "float16 or float32, not float64"),
        (["quantize", "@/nan.npy", "-o", "@/x.qet"], "matrix[2][1] must be a finite FP32 number"),
        (["quantize", "@/x.npy", "-o", "@/none/x.qet"], "no folder"),
        (["restore", "@/x.npy", "-o", "@/y.npy"], "not a file of a QET matrix"),
        (["report", "@/none.qet"], "No such file"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(tmp_path, matrix, capsys, arguments, line):
    np.save(tmp_path / "flat.npy", np.zeros(7, np.float32))
    np.save(tmp_path / "double.npy", np.zeros((7, 2)))
    np.save(tmp_path / "nan.npy", np.array([[1, 2], [3, 4], [5, np.nan]], np.float32))
    before = sorted(tmp_path.iterdir())
    assert run(tmp_path, *arguments) == 2
    error = capsys.readouterr().err.splitlines()
    assert error[-1].startswith("golden.llm.qet: ")
    assert line in error[-1]
    assert sorted(tmp_path.iterdir()) == before


def test_a_tensor_of_a_model(monkeypatch, tiny):
    monkeypatch.setattr("golden.llm.checkpoint.load", lambda model: tiny)
    name = "model.layers.0.mlp.up_proj.weight"
    found, bits = matrix_of(f"{name}@smollm2", None)
    assert bits == 32
    assert torch.equal(found, dict(tiny.model.named_parameters())[name])
    with pytest.raises(ConfigError, match=r"has no tensor 'model\.none'"):
        matrix_of("model.none@smollm2", None)
    with pytest.raises(ConfigError, match="must have rows and columns"):
        matrix_of("model.norm.weight@smollm2", None)
    with pytest.raises(ConfigError, match="a model must follow the @"):
        matrix_of("model.norm.weight@", None)


def test_ratios_are_exact():
    assert command.shares("7/10,3/10") == (Fraction(7, 10), Fraction(3, 10))
    assert command._default_shares(3) == (Fraction(7, 10), Fraction(3, 20), Fraction(3, 20))

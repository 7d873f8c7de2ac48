"""Codes and words that the library has from golden: registers, statuses, sampling, the image."""

import dataclasses
import math
import re
import struct
import subprocess
import zlib

import pytest

from golden.axi.format import CACHE_REGISTERS, REGISTERS
from golden.kllm import engines, isa
from golden.kllm.bounds import product_cycles
from golden.kllm.fetch import program_image
from golden.kllm.model.host_image import (
    HEADER_WORDS,
    MAGIC,
    VERSION,
    StepPrograms,
    host_image,
    pages_most,
)
from golden.kllm.model.program import step_program
from golden.paging.format import Op, Status
from senbazuru.host.build import CHIP_HEADER, HEADER
from senbazuru.host.engine import Engine
from senbazuru.host.strict import Sizes, StrictChip
from tests.kllm import model_example as example

WORDS = (HEADER.parent / "registers.h").read_text()


def enumeration(name):
    """The constants of an enumeration of "registers.h"."""
    body = re.search(rf"enum {name} : uint32_t {{(.*?)}}", WORDS, re.DOTALL)[1]
    return {key: int(value, 0) for key, value in re.findall(r"(\w+) = (\w+)", body)}


def names(of):
    """The texts of an array of "registers.h"."""
    body = re.search(rf"{of}\[\] = {{(.*?)}};", WORDS, re.DOTALL)[1]
    return re.findall(r'"(\w*)"', body)


def test_codes_are_goldens():
    registers = {name: each.offset for name, each in (REGISTERS | CACHE_REGISTERS).items()}
    assert enumeration("Register").items() <= registers.items()
    assert enumeration("Op").items() <= {op.name: int(op) for op in Op}.items()
    statuses = {status.name: int(status) for status in Status}
    assert enumeration("Status").items() <= statuses.items()
    assert names("UNITS") == [unit.name for unit in isa.Unit]
    for of, kind in (("COMMAND_STATUS", isa.CommandStatus), ("RUN_STATUS", isa.RunStatus)):
        found = {name: 1 << bit for bit, name in enumerate(names(of)) if name}
        assert found == {status.name: int(status) for status in kind}
    for text in (
        f"CACHE_UNIT = {int(isa.Unit.CACHE)}, RUN_UNIT = {isa.RUN_UNIT};",
        f"RUN_CHECKS = 1u << {isa.RUN_CHECKS.bit_length() - 1};",
        f"CAPACITY = 1u << {int(isa.CommandStatus.CAPACITY).bit_length() - 1};",
    ):
        assert text in WORDS
    assert 3 << 11 == isa.CommandStatus.OVERFLOW | isa.CommandStatus.SCALE_NONFINITE


@pytest.mark.parametrize("header", [HEADER, CHIP_HEADER], ids=lambda file: file.name)
def test_headers_are_c(header, tmp_path):
    """A program in C includes them and calls a function, without a warning."""
    source = tmp_path / "main.c"
    source.write_text(f'#include "{header}"\nint main(void) {{ return szr_free(NULL, 1); }}\n')
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"]
    subprocess.run([*command, f"-I{HEADER.parent}", source], check=True)


def test_sampling_is_goldens():
    """The words of a place, at temperatures of all sizes."""
    sizes = Sizes(places=1, sequences=1)
    chip = StrictChip(sizes)
    with Engine(chip, sizes.image()) as engine:
        temperatures = [1e-9, 2e-5, 2.3e-5, 0.1, 1.0, 1.5, 99.9, 100.0]
        temperatures += [0.01 * 1.37**n for n in range(28)]
        for seed, temperature in enumerate(temperatures):
            engine.submit([1], 1, temperature=temperature, top_k=5, seed=seed)
            engine.step()
            assert chip.batches[-1][0][3] == engines.Sampling.at(temperature, 5, seed)
        for drawn in ({"temperature": 0.0, "top_k": 5}, {"temperature": 2.0, "top_k": 1}):
            engine.submit([1], 1, **drawn)
            engine.step()
            assert chip.batches[-1][0][3] is None


def test_image():
    """Each word of the image of a model; programs are those of golden.kllm.fetch."""
    made = example.image()
    layout, config = made.layout, made.layout.config
    programs = StepPrograms(layout)
    assert programs.pairs() == [(t, c) for t in range(1, 5) for c in range(t + 1)]
    assert programs.pairs(1) == [(t, c) for t in range(1, 5) for c in range(2)]
    image = host_image(programs, made.thresholds.tolist())
    words = struct.unpack(f"<{len(image) // 4}I", image)
    assert words[:4] == (MAGIC, VERSION, len(image), zlib.crc32(image[16:]))
    shape = layout.shape
    facts = (shape.vocabulary, shape.context, config.batch, config.cache.sequences, config.top,
             config.cache.pages, shape.layers, layout.rows, 14, 0, 0, 0)  # fmt: skip
    assert words[4:HEADER_WORDS] == facts
    at = HEADER_WORDS
    for vector in made.thresholds.reshape(-1, 4).tolist():
        assert words[at] | words[at + 1] << 32 == sum(v << 16 * n for n, v in enumerate(vector))
        at += 2
    most = [pages_most(layout, tokens) for tokens in range(shape.context + 1)]
    assert list(words[at : at + shape.context + 1]) == most
    at += shape.context + 1
    for tokens, choosing in programs.pairs():
        pair, first, size, cycles = words[at : at + 4]
        at += 4
        assert pair == tokens | choosing << 16
        program = step_program(layout, tokens, choosing).words
        assert image[first : first + size] == program_image(program, config)
        assert cycles == math.ceil(product_cycles(program, layout.config)) > 0


def test_a_machine_without_room():
    """Steps that do not fit are left out. Those of one token are there."""
    made = example.image()
    config = dataclasses.replace(
        made.layout.config, vectors=dataclasses.replace(made.layout.config.vectors, rows=96)
    )
    layout = dataclasses.replace(made.layout, config=config)
    pairs = StepPrograms(layout).pairs()
    assert {(1, 0), (1, 1)} <= set(pairs)
    assert (4, 4) not in pairs

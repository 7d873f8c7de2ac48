"""Wave files: every reader of FST reads them, and the save file names signals that are there.

Two readers of ours take the files apart: zlib, and a decoder of LZ4 below. ``fst2vcd`` of GTKWave
read them too: the words on the ports of a reducer were those of golden.

Shown to fail with each of:

- an offset of LZ4 that is one too large; 4 bytes of literals at the end in the place of 5;
- Adler-32 modulo 65536;
- a traced run as a fork, which ends before the wave is written;
- a scope in the save file that the wave does not have;
- a traced model under the key of the other one.
"""

import itertools
import os
import random
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import tb.simulate.run
from hdl.back.verilog import convert
from hdl.registry import find
from tb.simulate import waves
from tb.simulate.compile import ROOT, TRACED
from tb.simulate.run import build_model

PROGRAM = r"""
#include <cstdio>
#include <vector>
#include "lz4.h"
#include "zlib.h"
int main(int, char** names) {
    std::vector<char> in;
    FILE* file = fopen(names[1], "rb");
    for (int c; (c = fgetc(file)) != EOF;) in.push_back(static_cast<char>(c));
    const int size = static_cast<int>(in.size());
    std::vector<char> out(static_cast<size_t>(LZ4_compressBound(size)));
    const int packed = LZ4_compress_default(in.data(), out.data(), size, LZ4_compressBound(size));
    fwrite(out.data(), 1, static_cast<size_t>(packed), fopen(names[2], "wb"));
    uLongf length = compressBound(in.size());
    std::vector<Bytef> stored(length);
    compress2(stored.data(), &length, reinterpret_cast<const Bytef*>(in.data()), in.size(), 4);
    fwrite(stored.data(), 1, length, fopen(names[3], "wb"));
    fflush(nullptr);
}
"""


def lz4_decoded(block: bytes) -> bytes:
    """A block of LZ4; AssertionError where the format forbids its end."""
    out, at = bytearray(), 0

    def length(value: int) -> int:
        nonlocal at
        if value == 15:
            while True:
                at += 1
                value += block[at - 1]
                if block[at - 1] != 255:
                    break
        return value

    while True:
        token = block[at]
        at += 1
        literals = length(token >> 4)
        out += block[at : at + literals]
        at += literals
        if at == len(block):
            assert literals >= 5 or len(out) == literals, "the last 5 bytes are literals"
            return bytes(out)
        offset = int.from_bytes(block[at : at + 2], "little")
        at += 2
        assert 0 < offset <= len(out)
        for _ in range(length(token & 15) + 4):
            out.append(out[-offset])


@pytest.fixture(scope="module")
def packer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packer")
    (folder / "main.cpp").write_text(PROGRAM)
    include = ROOT / "tb" / "native" / "fst"
    command = ["g++", "-std=gnu++14", "-Wall", "-Werror", "-O1", f"-I{include}", "main.cpp"]
    subprocess.run(command, cwd=folder, check=True)

    def pack(data: bytes) -> tuple[bytes, bytes]:
        (folder / "in").write_bytes(data)
        subprocess.run([folder / "a.out", "in", "lz4", "zlib"], cwd=folder, check=True)
        return (folder / "lz4").read_bytes(), (folder / "zlib").read_bytes()

    return pack


def test_other_readers_read_what_we_pack(packer):
    rng = random.Random(5)
    texts = [b"", b"a", b"abcd" * 3, b"\0" * 100, rng.randbytes(70_000), b"\0" * 200_000]
    texts += [bytes(rng.choices(b"ab", k=n)) for n in (11, 12, 13, 14, 17, 18, 300, 5000)]
    texts += [rng.randbytes(300) * 4 + b"abcdefgh" * 40 + rng.randbytes(15)]
    for text in texts:
        packed, stored = packer(text)
        assert lz4_decoded(packed) == text
        assert zlib.decompress(stored) == text
    assert len(packer(b"\0" * 200_000)[0]) < 1000


def names_in(wave: bytes) -> set[str]:
    """Names of all signals of an FST file, with their scopes."""
    blocks, at = {}, 0
    while at < len(wave):
        kind, size = wave[at], int.from_bytes(wave[at + 1 : at + 9], "big")
        blocks[kind] = wave[at + 9 : at + 1 + size]
        at += 1 + size
    assert at == len(wave), "the last block is not whole"
    packed = blocks[6]  # the hierarchy
    text = lz4_decoded(packed[8:])
    assert len(text) == int.from_bytes(packed[:8], "big")
    found, scope, at = set(), [], 0

    def string() -> str:
        nonlocal at
        end = text.index(0, at)
        at, start = end + 1, at
        return text[start:end].decode()

    def number() -> int:
        nonlocal at
        value, shift = 0, 0
        while True:
            at += 1
            value |= (text[at - 1] & 127) << shift
            shift += 7
            if text[at - 1] < 128:
                return value

    while at < len(text):
        tag = text[at]
        at += 1
        if tag == 254:  # scope: kind, name, component
            at += 1
            scope.append(string())
            string()
        elif tag == 255:
            scope.pop()
        elif tag == 252:  # attribute: two bytes, name, number
            at += 2
            string()
            number()
        elif tag != 253:  # variable: direction, name, width, alias
            at += 1
            found.add(".".join([*scope, string()]))
            number()
            number()
    return found


def test_a_traced_model_is_another_model(monkeypatch, tmp_path):
    """Shown with a stand-in for the compiler."""
    seen = []

    def compile_model(directory, top, arguments, *, separate, long_run):
        seen.append(TRACED in arguments)
        (directory / top).write_text("model")

    monkeypatch.setattr(tb.simulate.run, "compile_model", compile_model)
    monkeypatch.setattr(tb.simulate.run, "SIM_DIR", tmp_path)
    skid = find("stream_skid")
    models = []
    for value in ("", "0", "1"):
        monkeypatch.setenv(waves.WAVE, value)
        models.append(build_model(skid.component(skid.config)))
    assert seen == [False, True]
    assert [model.is_traced for model in models] == [False, False, True]
    assert models[0] == models[1]
    assert models[0].directory != models[2].directory


@pytest.mark.parametrize("wrap", [None, "axi"])
@pytest.mark.parametrize("name", ["kllm_matmul", "oaken_kv_engine"])
def test_each_port_is_in_one_group(name, wrap):
    block = find(name)
    component = block.component(block.configs.get("small", block.config))
    description = convert(component, name, wrap).description
    grouped = [port["name"] for _, ports in waves.groups(description) for port in ports]
    assert sorted(grouped) == sorted(port["name"] for port in description["ports"])
    streams = {each["name"] for each in description["streams"]}
    assert streams <= {group.partition(" ")[0] for group, _ in waves.groups(description)}


def test_pytest_writes_waves_and_prints_where():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--wave", "tb/stream/test_skid.py"],
        cwd=ROOT,
        env={name: each for name, each in os.environ.items() if name != waves.WAVE},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    found = re.findall(r"^wave: (\S+\.fst) \(tb/stream/test_skid.py", done.stdout, re.M)
    assert found
    wave = Path(found[0])
    names = names_in(wave.read_bytes())
    lines = wave.with_suffix(".gtkw").read_text().splitlines()
    shown = [line.replace("[", " [") for line in lines if line.startswith(f"{wave.stem}.")]
    assert len(shown) > 10
    assert set(shown) <= names
    groups = {group for flag, group in itertools.pairwise(lines) if flag == "@800200"}
    assert "-clock and reset" in groups
    assert any(group.endswith("(input)") for group in groups)


def test_waves_are_of_one_seed():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--wave", "--seeds", "2", "tb/stream/test_skid.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (4, 2)
    assert "--wave is for one seed" in done.stderr

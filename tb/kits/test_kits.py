"""Testbenches of kits: what they find in small blocks of plain Verilog, and kits of some rooms.

Verilator runs all of them. Icarus Verilog runs them too where it is installed; CI has none.
``python -m senbazuru.runs.kits`` runs the kits of all blocks under both, with planted faults.

Shown to fail:

- the comparison of words in ``@_sink`` with ``==`` and without masks;
- ``@_hold`` left out;
- ``complete`` of a sink that is true at once;
- ``late`` always 0;
- the final words of a memory that nobody compares;
- a file of vectors that no module checks to be whole: ``test_vectors_that_are_not_there``;
- variables of Verilator's makefile in MAKEFLAGS: ``test_a_script_that_make_runs``;
- no cycles after the last word of an episode: the fault "a word that comes late";
- valid or ready that may be unknown: ``test_unknown_values``.
"""

import subprocess

import pytest

from hdl.kit.episodes import Episode, Fault, Memory, Vectors
from hdl.kit.kits import all_kits, find_kit
from hdl.kit.runner import run_script
from hdl.kit.testbench import bench_files
from tb.kits.check import SIMULATORS, available, plant, run_kit, write_kit
from tb.simulate.compile import tool_environment

INSTALLED = [each for each in SIMULATORS if available(each)]
WORDS = list(range(20, 60))


def test_verilator_is_one_of_them():
    assert "verilator" in INSTALLED


# A register in a stream, and what goes wrong in it.
_REGISTER = """\
module thing(input clk, input rst, input [7:0] i__payload, input i__valid, output i__ready,
             output [7:0] o__payload, output o__valid, input o__ready, output [3:0] level);
  reg full;
  reg [7:0] word;
  reg [15:0] count;
  wire take = i__valid & i__ready;
  assign i__ready = !full | o__ready;
  assign o__valid = full;
  assign o__payload = word;
  assign level = full;
  always @(posedge clk)
    if (rst) begin
      full <= 1'b0;
      count <= 16'd0;
    end else begin
      if (take) word <= i__payload;
      if (i__ready) full <= i__valid;
      if (take) count <= count + 16'd1;
    end
endmodule
"""
_FAULTS = {
    "a wrong bit": ("o__payload = word", "o__payload = word ^ (count == 16'd30)", "golden"),
    "a word that is lost": ("full <= i__valid", "full <= i__valid & count != 16'd9", "golden"),
    "the last word lost": ("full <= i__valid", "full <= i__valid & count != 16'd39", "no end"),
    "a word too many": ("full <= i__valid", "full <= i__valid | count == 16'd40", "beyond"),
    "a word that comes late": (
        "if (take) count <= count + 16'd1;",
        "if (take | count > 16'd39) count <= count + 1; if (count == 16'd70) full <= 1'b1;",
        "beyond",
    ),
    "valid that falls": (
        "full <= i__valid", "full <= i__valid; else if (count == 16'd5) full <= 1'b0", "valid fell",
    ),
    "a word that changes": (
        "o__payload = word", "o__payload = word ^ {7'd0, !o__ready}", "changed before",
    ),
    "valid after ready": ("o__valid = full", "o__valid = full & o__ready", "no end"),
    "an output": (
        "assign level = full", "assign level = full | count == 16'd40", "level is 1, golden 0",
    ),
}  # fmt: skip
_PORTS = (
    ("clk", "input", 1, "clock"), ("rst", "input", 1, "reset"),
    ("i__payload", "input", 8, "stream payload"), ("i__valid", "input", 1, "stream valid"),
    ("i__ready", "output", 1, "stream ready"), ("o__payload", "output", 8, "stream payload"),
    ("o__valid", "output", 1, "stream valid"), ("o__ready", "input", 1, "stream ready"),
    ("level", "output", 4, "signal"),
)  # fmt: skip
_DESCRIPTION = {
    "name": "thing",
    "ports": [
        {"name": name, "direction": direction, "width": width, "role": role}
        for name, direction, width, role in _PORTS
    ],
    "streams": [
        {"name": name, "direction": direction,
         **{end: f"{name}__{end}" for end in ("payload", "valid", "ready")}}
        for name, direction in (("i", "input"), ("o", "output"))
    ],
}  # fmt: skip


def _vectors(**fields) -> Vectors:
    episode = Episode(name="words", words={"i": WORDS, "o": WORDS}, outputs={"level": 0}, **fields)
    return Vectors(golden="the test", episodes=[episode])


def _run(folder, verilog, vectors, simulator, description=_DESCRIPTION):
    name = description["name"]
    files = bench_files(description, vectors) | {
        f"{name}.v": verilog,
        f"{name}.vlt": "`verilator_config\nlint_off -rule WIDTH\n",
        f"{name}_tb.f": f"{name}.v\n{name}_tb.v\n",
        "run.sh": run_script(name),
    }
    for file, text in files.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    return run_kit(folder, simulator)


@pytest.mark.parametrize("simulator", INSTALLED)
def test_a_sound_block_passes(tmp_path, simulator):
    run = _run(tmp_path, _REGISTER, _vectors(), simulator)
    assert run.passes, run.text
    assert run.text.startswith("PASS thing: 1 episodes at 4 flows, 320 transfers")


@pytest.mark.parametrize("fault", _FAULTS)
@pytest.mark.parametrize("simulator", INSTALLED)
def test_a_fault_fails(tmp_path, simulator, fault):
    old, new, found = _FAULTS[fault]
    assert _REGISTER.count(old) == 1
    run = _run(tmp_path, _REGISTER.replace(old, new), _vectors(), simulator)
    assert run.status == 1, run.text
    assert found in run.text
    assert "FAIL thing: flow" in run.text


@pytest.mark.parametrize("simulator", INSTALLED)
def test_bits_that_are_not_compared(tmp_path, simulator):
    faulty = _REGISTER.replace("o__payload = word", "o__payload = word ^ 8'h80")
    for mask, passes in ((0x7F, True), (0xFF, False)):
        vectors = _vectors(masks={"o": [mask] * len(WORDS)})
        assert _run(tmp_path / str(mask), faulty, vectors, simulator).passes == passes


_UNKNOWN = {
    "a bit": ("word <= i__payload", "word <= {i__payload[7:1], 1'bx}", "golden"),
    "valid": ("o__valid = full", "o__valid = count == 16'd5 ? 1'bx : full", "valid is unknown"),
    "ready": ("!full | o__ready", "count == 16'd5 ? 1'bx : !full | o__ready", "ready is unknown"),
}


@pytest.mark.skipif("icarus" not in INSTALLED, reason="Verilator has no unknown values")
@pytest.mark.parametrize("fault", _UNKNOWN)
def test_unknown_values(tmp_path, fault):
    old, new, found = _UNKNOWN[fault]
    assert _REGISTER.count(old) == 1
    run = _run(tmp_path, _REGISTER.replace(old, new), _vectors(), "icarus")
    assert run.status == 1
    assert found in run.text


@pytest.mark.parametrize("simulator", INSTALLED)
def test_vectors_that_are_not_there(tmp_path, simulator):
    """No file of vectors can be missing or cut, nor all of them."""
    assert _run(tmp_path, _REGISTER, _vectors(), simulator).passes
    files = sorted((tmp_path / "vectors").iterdir())
    texts = {file: file.read_text() for file in files}
    assert len(files) == 7
    cases = [{file: None} for file in files]
    cases += [{file: text[: text.rindex("\n", 0, -1) + 1]} for file, text in texts.items()]
    for case in (*cases, dict.fromkeys(files)):
        for file, text in (texts | case).items():
            file.unlink(missing_ok=True) if text is None else file.write_text(text)
        run = run_kit(tmp_path, simulator)
        assert run.status == 1, (sorted(case), run.text)
        assert "a file of vectors is missing or cut" in run.text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"words": {"i": [1], "p": [1]}}, r"thing: words of one: \['p'\]"),
        ({"words": {}, "ports": {"level": 1}}, r"thing: ports of one: \['level'\]"),
        ({"words": {}, "outputs": {"i": 1}}, r"thing: outputs of one: \['i'\]"),
        ({"words": {"o": [1]}, "masks": {"o": []}}, "thing: one: 0 masks of o"),
        ({"words": {}, "faults": {"axi": Fault(low=0, high=1, response=2)}}, "faults of one"),
    ],
)
def test_vectors_that_do_not_fit(fields, message):
    with pytest.raises(ValueError, match=message):
        bench_files(_DESCRIPTION, Vectors(episodes=[Episode(name="one", **fields)]))


def test_a_memory_without_a_bus():
    vectors = Vectors(episodes=[], memories=[Memory(bus="axi", low=0, words=1)])
    with pytest.raises(ValueError, match="thing: axi is no AXI4 manager"):
        bench_files(_DESCRIPTION, vectors)


# Kits of some rooms, one with a memory, one with a memory whose words are compared.
SOME = ["stream_narrow", "fp16_compare", "index_reducer", "axi_write_port", "qet_dequant_gemv"]


@pytest.mark.telling("stream_narrow", "fp16_compare", "index_reducer", "axi_write_port")
@pytest.mark.parametrize("name", SOME)
def test_a_kit_passes_and_fails_with_a_fault(name, tmp_path):
    kit = tmp_path / "kit"
    write_kit(name, kit)
    for simulator in INSTALLED:
        run = run_kit(kit, simulator)
        assert run.passes, f"{simulator}: {run.text}"
    faults = plant(name, kit, tmp_path / "faults", 4, seed=1)
    simulator = INSTALLED[0]
    assert faults.run(simulator, 0).passes
    assert any(faults.run(simulator, mutant.number).fails for mutant in faults.mutants)


def test_the_words_of_the_memory_are_compared(tmp_path):
    """A byte of the final image changed: the write port is right, the image is not."""
    write_kit("axi_write_port", tmp_path)
    final = tmp_path / "vectors" / "axi_write_port_tb.axi.final.hex"
    lines = final.read_text().splitlines()
    lines[-2] = f"{int(lines[-2], 16) ^ 1:0{len(lines[-2])}x}"  # the last line ends the file
    final.write_text("\n".join([*lines, ""]))
    run = run_kit(tmp_path, INSTALLED[-1])
    assert run.status == 1, run.text
    assert "axi: word" in run.text


def test_a_script_without_a_simulator(tmp_path):
    write_kit("stream_skid", tmp_path)
    run = run_kit(tmp_path, "modelsim")
    assert run.status == 2
    assert run.text == "run.sh: the simulator must be icarus or verilator, not 'modelsim'\n"


def test_a_script_that_make_runs(tmp_path):
    """MAKEFLAGS of the make that runs it replaces nothing that Verilator needs."""
    write_kit("stream_skid", tmp_path)
    environment = tool_environment() | {"MAKEFLAGS": "s"}
    command = ["sh", str(tmp_path / "run.sh"), "verilator"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-2000:]
    assert "PASS stream_skid:" in run.stdout


def test_every_room_has_kits():
    rooms = {type_of.split("_")[0] for type_of in all_kits()}
    assert len(all_kits()) >= 30
    assert {"stream", "fp16", "index", "memory", "attention", "paging", "axi", "lane", "kllm",
            "oaken", "million", "vq", "qet"} <= rooms  # fmt: skip


def test_find_kit():
    assert find_kit("stream_skid") is all_kits()["stream_skid"]
    assert find_kit("memory_1rw") is None

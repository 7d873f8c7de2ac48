"""``hdl.build --separator``: names of ports that VHDL and every Verilator take, of one top alone.

Shown to fail:

- wires and instances in the way keep their names: ``test_wires_and_instances_in_the_way``;
- capitals told apart: ``test_refused_names``;
- the testbench of a kit keeps the names of the block: ``test_a_kit_runs``;
- the constants take the ports' ends by ``__payload``: ``test_files_of_a_kit``;
- the description is not renamed: ``test_only_the_top_has_other_names``.
"""

import json
import re

import pytest
from amaranth import Module, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out

from golden.config import ConfigError
from hdl import build
from hdl.back.deliver import deliver, write
from hdl.back.emit import flat_ports
from hdl.back.separator import delivered_names
from hdl.block import Block
from hdl.build import main
from hdl.children import add
from hdl.kit.kits import shown, vectors
from hdl.kit.parts import PARTS, make_kit
from hdl.registry import all_blocks, find
from tb.kits.check import available, run_kit
from tb.together import smallest, verilator, yosys
from tests.test_emit import FIRST, PlainConfig

NAMES = ["stream_fifo", "stream_join", "axi_read_port", "axi_lite_registers", "fp16_add",
         "memory_shared", "paging_page_table", "kllm_scaler"]  # fmt: skip
PORT = re.compile(r"[a-z](_?[a-z0-9])*")


def test_every_block_has_names():
    """Each block and each configuration has ports with names; nothing is elaborated."""
    for name, each in all_blocks().items():
        for config in (each.config, *each.configs.values()):
            block = each.component(config)
            block._MustUse__silence = True
            ports = ["clk", "rst", *(port.name for port in flat_ports(block))]
            made = delivered_names(ports, "_")
            assert all(PORT.fullmatch(made.get(port, port)) for port in ports), name
            assert delivered_names(ports, "__") == {}


@pytest.mark.parametrize("name", NAMES)
def test_only_the_top_has_other_names(name, tmp_path):
    each = find(name)
    old = deliver(each.component(smallest(each)), name)
    new = deliver(each.component(smallest(each)), name, separator="_")
    head = re.search(rf"^module {name} \((.*?)^\);", new.verilog, re.S | re.M)[1]
    ports = re.findall(r"^  (?:input|output) .*?(\w+),?(?:  +//.*)?$", head, re.M)
    assert ports == [port["name"] for port in new.description["ports"]]
    assert all(map(PORT.fullmatch, ports))
    assert "__" not in json.dumps(new.description)
    assert len(ports) == len(old.description["ports"])
    assert {k: v for k, v in old.modules.items() if k != name} == {
        k: v for k, v in new.modules.items() if k != name
    }
    write([(tmp_path, new)])
    assert verilator(tmp_path, [name]) == ""
    assert yosys(tmp_path) == ""


def test_without_the_option_nothing_changes():
    each = find("axi_read_port")
    block = each.component(smallest(each))
    plain = deliver(block, "axi_read_port")
    assert deliver(block, "axi_read_port", separator="__").files() == plain.files()
    assert plain.inner == plain.description


class InTheWay(Block):
    """A wire and an instance have the names that ports shall have."""

    def __init__(self, config):
        super().__init__(config, {"i": In(stream.Signature(2)), "o": Out(stream.Signature(2))})

    def elaborate(self, platform):
        m = Module()
        leaf = add(m, "o_payload", FIRST(PlainConfig()))
        i_payload = Signal(2)
        m.d.sync += i_payload.eq(self.i.payload)
        m.d.comb += [leaf.i.eq(i_payload), self.o.payload.eq(leaf.o)]
        m.d.comb += [self.o.valid.eq(self.i.valid), self.i.ready.eq(self.o.ready)]
        return m


def test_wires_and_instances_in_the_way(tmp_path):
    made = deliver(InTheWay(PlainConfig()), "way", separator="_")
    text = made.modules["way"]
    assert "reg [1:0] i_payload_2;" in text
    assert "i_payload_2 <= i_payload;" in text
    assert re.search(r"^  leaf_\w+ o_payload_2 \(", text, re.M)
    write([(tmp_path, made)])
    assert yosys(tmp_path) == ""


def of(*names: str) -> type[Block]:
    """A block of one bit per name; ``a.b`` is the member ``b`` of a stream."""

    class Some(Block):
        """Some ports."""

        def __init__(self, config):
            members = {
                name: In(stream.Signature(1)) if name.endswith(".") else In(1) for name in names
            }
            super().__init__(config, {name.rstrip("."): each for name, each in members.items()})

        def elaborate(self, platform):
            raise AssertionError("refused before it is converted")

    return Some


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a.", "a_valid"), "makes one name of a__valid and a_valid, 'a_valid'"),
        (("a.", "A_valid"), "makes one name of a__valid and A_valid, 'A_valid'"),
        (("Clk", "x"), "makes one name of clk and Clk, 'Clk'"),
        (("signal",), "makes signal 'signal', a keyword of VHDL"),
        (("Signal",), "makes Signal 'Signal', a keyword of VHDL"),
        (("x_",), "makes x_ 'x_', no identifier of VHDL"),
    ],
)
def test_refused_names(names, message, monkeypatch, tmp_path, capsys):
    each = type("Each", (), {"component": of(*names), "config": PlainConfig(), "configs": {}})
    monkeypatch.setattr(build, "find", lambda name: each)
    monkeypatch.setattr(build, "configuration", lambda *_: PlainConfig())
    for more in ([], ["--kit", "--parts", "sdc"], ["--ports"]):
        folder = tmp_path / "x"
        assert main(["some", "--separator", "_", "-o", str(folder), *more]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert f"hdl.build: --separator _ {message}" in captured.err
        assert not folder.exists()


def test_refused_streams():
    with pytest.raises(ConfigError, match="makes one name of a__b and a_b"):
        delivered_names([], "_", ["a__b", "a_b"])
    assert delivered_names(["table__valid"], "_", ["table"]) == {"table__valid": "table_valid"}
    with pytest.raises(ConfigError, match="makes _x '_x', no identifier of VHDL"):
        delivered_names(["_x"], "_")
    with pytest.raises(ConfigError, match="--separator must be __ or _, not '-'"):
        delivered_names(["x"], "-")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--wrap", "axi"], "--separator _ is for ports without --wrap axi"),
        (["--as", "a__b"], "--as must be a name that VHDL takes with --separator _, not 'a__b'"),
        (["--as", "Entity"], "not 'Entity', a keyword of VHDL"),
        (["--prefix", "_"], "--prefix must be a name that VHDL takes"),
        (["--as", "i_valid"], "--as must not be 'i_valid', a port of stream_skid"),
        (["--as", "I_Valid"], "--as must not be 'I_Valid', a port of stream_skid"),
    ],
)
def test_one_line_for_a_mistake(arguments, message, tmp_path, capsys):
    folder = tmp_path / "x"
    assert main(["stream_skid", "--separator", "_", "-o", str(folder), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert not folder.exists()


def test_another_separator(capsys):
    with pytest.raises(SystemExit) as status:
        main(["stream_skid", "--separator", "-"])
    assert status.value.code == 2
    assert "invalid choice: '-'" in capsys.readouterr().err


def test_a_wrapper_has_names_of_its_own():
    block = find("stream_skid")
    with pytest.raises(ConfigError, match="--separator is for ports without a wrapper"):
        deliver(block.component(block.config), "stream_skid", wrap="axi", separator="_")


def test_ports_are_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["axi_read_port", "--separator", "_", "--ports"]) == 0
    out = capsys.readouterr().out
    assert "axi_ar_payload" in out
    assert "__" not in out
    assert not list(tmp_path.iterdir())


def kit(name: str, separator: str):
    config = shown(name)
    block = find(name).component(config)
    return make_kit(block, name, PARTS, vectors(name, config), separator=separator)


def test_files_of_a_kit():
    """All files follow, and the constants are the same with either separator."""
    old, new = kit("axi_read_port", "__").files(), kit("axi_read_port", "_").files()
    assert old.keys() == new.keys()
    changed = {name for name in old if old[name] != new[name]}
    ends = ("json", "sdc", "v", "vlt", "vh")
    assert changed <= {name for name in old if name.rpartition(".")[2] in ends}
    for name in ("axi_read_port.sdc", "axi_read_port_template.vh"):
        assert name in changed
        assert "__" not in new[name]


@pytest.mark.parametrize("name", ["axi_read_port", "stream_join"])
@pytest.mark.parametrize("simulator", ["icarus", "verilator"])
def test_a_kit_runs(name, simulator, tmp_path):
    if not available(simulator):
        pytest.skip(f"{simulator} is not installed")
    write([(tmp_path, kit(name, "_"))])
    run = run_kit(tmp_path, simulator)
    assert run.passes, run.text

"""The picture of a block: its graph is the design's, the pages show it, the bytes are stable.

Shown to fail with each of:

- the select of a ``$mux`` taken as data (``_CONTROL`` empty);
- a comparison taken as data (``_ENDS`` that matches nothing);
- a constant payload taken as words, so that the valid of a fork says nothing;
- lanes of ``hdl.pages.layers`` without a place, so that lines cross boxes;
- a set in the place of ``dict.fromkeys`` in the order of parts.
"""

import dataclasses
import itertools
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from amaranth import Module, Mux, Signal
from amaranth.lib import stream

from golden.config import Config
from hdl.back.emit import own_module
from hdl.block import Block
from hdl.build import main
from hdl.children import add
from hdl.pages.diagram import diagram, draw
from hdl.pages.documents import pages_directory, picture, shows_diagram
from hdl.pages.layers import Arc, Box, arrange
from hdl.pages.parts import End, Parts, parts
from hdl.ports import In, Out, Payload
from hdl.registry import find, ips, rooms
from hdl.stream.fifo import StreamFifo, StreamFifoConfig
from hdl.stream.fork import StreamFork, StreamForkConfig
from hdl.stream.link import link

ROOT = Path(__file__).resolve().parent.parent
SHOWN = [name for name in ips() if shows_diagram((pages_directory() / f"{name}.md").read_text())]
WORD = stream.Signature(Payload(data=(8, "a word")))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlantedConfig(Config):
    pass


class Planted(Block):
    """Two queues; a choice between them; a register; a fork of valids; a number of a queue."""

    def __init__(self):
        members = {name: In(WORD, "words") for name in ("i", "j", "select")}
        members |= {name: Out(WORD, "words") for name in ("chosen", "kept", "forked")}
        super().__init__(PlantedConfig(), members)

    def elaborate(self, platform):
        m = Module()
        queue = StreamFifoConfig(width=8, depth=2, last=False)
        queues = [add(m, f"queue_{n}", StreamFifo(queue)) for n in range(2)]
        link(m, self.i, queues[0].i)
        link(m, self.j, queues[1].i)
        is_equal = queues[1].level == self.select.p.data
        is_first = self.select.p.data[0]
        m.d.comb += [
            self.chosen.p.data.eq(Mux(is_first, queues[0].o.p.data, queues[1].o.p.data + is_equal)),
            self.chosen.valid.eq(queues[0].o.valid),
            queues[0].o.ready.eq(self.chosen.ready),
        ]
        kept = Signal(8)
        m.d.sync += kept.eq(self.i.p.data)
        m.d.comb += self.kept.p.data.eq(kept)
        fork = add(m, "fork", StreamFork(StreamForkConfig(width=1, outputs=2)))
        m.d.comb += [
            fork.i.valid.eq(self.j.valid),
            self.forked.p.data.eq(self.j.p.data),
            self.forked.valid.eq(fork.o[1].valid),
            fork.o[1].ready.eq(self.forked.ready),
        ]
        return m


def flow(text: str) -> tuple[End, End]:
    source, sink = (End(*each.split(".")) for each in text.split(" "))
    return source, sink


def test_the_graph_is_that_of_the_design():
    found = parts(Planted())
    assert list(found.parts) == ["queue[2]", "fork"]
    assert found.parts["queue[2]"].count == 2
    assert found.parts["fork"].outputs == ("o[2]",)
    assert (found.inputs, found.outputs) == (
        ("i", "j", "select"),
        ("chosen", "kept", "forked"),
    )
    assert set(found.flows) == {
        flow(".i queue[2].i"),
        flow(".j queue[2].i"),
        flow("queue[2].o .chosen"),
        flow(".j fork.i"),
        flow(".j .forked"),
        flow("fork.o[2] .forked"),
    }


def test_a_block_of_a_room_has_the_streams_of_its_page():
    """The lane as its mermaid of docs/architecture.md draws it."""
    lane = find("kllm_pe_lane")
    found = set(parts(lane.component(lane.shown)).flows)
    for text in (
        ".job control.job",
        ".w weight_buffer.i",
        "weight_buffer.o control.w",
        "codebook_buffer.product row_lookup.product",
        "dense.o finish.dense",
        "sparse.o finish.sparse",
        "finish.y .y",
    ):
        assert flow(text) in found, text


def test_no_child_is_elaborated(monkeypatch):
    def elaborate(self, platform):
        raise AssertionError

    monkeypatch.setattr(StreamFifo, "elaborate", elaborate)
    text, children = own_module(Planted())
    assert text.startswith("module \\outline\n")
    assert {type(each) for each in children.values()} == {StreamFifo, StreamFork}


# -- layout -------------------------------------------------------------------------------------
def box(width: float) -> Box:
    return Box(width, 20, {"": width / 2}, {"": width / 2})


def test_boxes_and_lines_do_not_meet():
    names = [f"b{n}" for n in range(12)]
    boxes = {name: box(60 + 10 * n) for n, name in enumerate(names)}
    arcs = [
        Arc(a, "", b, "") for n, (a, b) in enumerate(itertools.permutations(names, 2)) if n % 5 == 0
    ]
    found = arrange(boxes, arcs, most=300, between=30)
    for a, b in itertools.combinations(names, 2):
        (x, y), (other, below) = found.places[a], found.places[b]
        is_apart = x + boxes[a].width <= other or other + boxes[b].width <= x
        assert is_apart or y + 20 <= below or below + 20 <= y, (a, b)
    for arc, path in found.paths.items():
        for (x, y), (_, below) in list(itertools.pairwise(path))[1:-1:2]:  # straight, past a row
            for name, (left, top) in found.places.items():
                hits = left < x < left + boxes[name].width and min(y, below) <= top < max(y, below)
                assert not hits, (arc, name)


def test_a_row_has_a_width():
    boxes = {f"b{n}": box(100) for n in range(10)}
    found = arrange(boxes, [], most=350, between=30)
    assert len({y for _, y in found.places.values()}) == 4
    assert found.width <= 350


# -- pictures -----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", SHOWN)
def test_picture_has_the_width_of_a_page(name):
    text = picture(name)
    root = ET.fromstring(text)
    left, _, width, _ = map(float, root.attrib["viewBox"].split())
    assert width <= 1200, "far wider than a page"
    assert len(text) < 30_000
    for group in root.iter("{http://www.w3.org/2000/svg}g"):
        x = float(group.attrib["transform"].removeprefix("translate(").split()[0])
        assert left <= x <= left + width


def test_each_room_has_a_picture():
    for name, room in rooms().items():
        assert set(room.blocks) & set(SHOWN), f"no page of {name} has a diagram"


def test_same_bytes_every_run():
    program = (
        "import sys; from hdl.pages.documents import picture; "
        "sys.stdout.write(picture('oaken_kv_engine'))"
    )
    texts = {picture("oaken_kv_engine")}
    for hash_seed in ("1", "77"):
        made = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        texts.add(made.stdout)
    assert len(texts) == 1


def test_names_are_escaped_and_a_block_without_parts_is_one_box():
    fifo = find("stream_fifo")
    text = diagram(fifo.component(fifo.config), "fifo")
    assert text.count('class="b"') == 1
    assert text.count('class="a"') == 2
    empty = draw("a<b", Parts(("i<0",), (), {}, (), ()))
    assert "i&lt;0" in empty
    ET.fromstring(empty)


def test_build_writes_the_picture(tmp_path, capsys):
    arguments = ["stream_fifo", "--as", "shallow", "--prefix", "my_", "--diagram"]
    assert main([*arguments, "-o", str(tmp_path)]) == 0
    assert "shallow" in ET.fromstring((tmp_path / "my_shallow.svg").read_text())[0].text
    assert f"{tmp_path / 'my_shallow.svg'}" in capsys.readouterr().out
    assert len(list(tmp_path.iterdir())) == 4


def test_a_place_that_cannot_be_written_is_one_line(tmp_path, capsys):
    """Nothing is half written: the Verilog of the same call is not there either."""
    (tmp_path / "stream_fifo.svg").mkdir()
    assert main(["stream_fifo", "--diagram", "-o", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "stream_fifo.svg" in error
    assert [each.name for each in tmp_path.iterdir()] == ["stream_fifo.svg"]
    file = tmp_path / "file"
    file.touch()
    assert main(["stream_fifo", "--diagram", "-o", str(file)]) == 2
    assert capsys.readouterr().err.count("\n") == 1

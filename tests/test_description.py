"""NAME.json: each port, field and element has its place and its kind."""

import enum
import json
import math
import random
import re
from fractions import Fraction
from pathlib import Path

import pytest
from amaranth.hdl import signed
from amaranth.lib import data, stream

from golden.config import Config
from golden.fp16.format import FP16
from golden.isa import CommandSet
from golden.million.format import Op as MillionOp
from golden.paging.format import Op, PageOp, Status
from golden.paging.pages import PageTable
from golden.paging.vectors import WIDTHS, Traffic
from golden.timing import Timing
from hdl.back.description import Codes, fields, memories, streams, word, wrapped_streams
from hdl.back.verilog import convert, describe, outline, port_descriptions, without_kind
from hdl.block import Block
from hdl.build import build
from hdl.kinds import BITS, BYTES, NUMBER, fixed, index_of, mask_of, member_texts, named
from hdl.ports import In, Out, Payload
from hdl.registry import all_blocks

_TYPES = {"unsigned", "signed", "bool", "bits", "float", "index", "mask", "enum", "flags", "struct"}


def _described():
    """(block, configuration, its ports) of every block at every named configuration."""
    for name, registered in all_blocks().items():
        for label, config in {"default": registered.config, **registered.configs}.items():
            block = registered.component(config)
            block._MustUse__silence = True
            assert without_kind(block) == [], f"{name} {label}"
            yield name, label, port_descriptions(block)


def _leaves(found: dict, path: str):
    if found["type"] == "struct":
        for field in found["fields"]:
            yield from _leaves(field, f"{path}.{field['name']}")
    else:
        yield path, found


def _check_places(found: dict, width: int, where: str) -> None:
    """The elements fill ``width`` bits in order, without gap and without overlap."""
    if "elements" in found:
        places = [(each["offset"], each["width"]) for each in found["elements"]]
        assert len(places) == math.prod(found["shape"]), where
    else:
        places = [(0, found["element_width"])]
        for length, stride in zip(found.get("shape", ()), found.get("stride", ()), strict=True):
            places = [(at + n * stride, size) for at, size in places for n in range(length)]
    places.sort()
    ends = [0] + [at + size for at, size in places]
    assert [at for at, _ in places] == ends[:-1], where
    assert ends[-1] == width, where
    if found["type"] == "struct":
        inner = [(each["offset"], each["width"]) for each in found["fields"]]
        ends = [0] + [at + size for at, size in inner]
        assert [at for at, _ in inner] == ends[:-1], where
        assert ends[-1] == found["element_width"], where
        for each in found["fields"]:
            _check_places(each, each["width"], f"{where}.{each['name']}")


def test_every_field_of_every_block_has_a_kind_and_a_place():
    """Fails without a kind: take NUMBER from a field of hdl/paging/page_table.py.

    A field has one type at all configurations, but for the sign of a number. A field that is one
    bit wide at one of them must not become a bool by its width. Fails so without the kind of
    ``source`` in hdl/stream/arbiter.py.
    """
    types: dict[tuple[str, str], set[str]] = {}
    for name, label, ports in _described():
        for port in ports:
            where = f"{name} {label} {port['name']}"
            _check_places(port, port["width"], where)
            for path, leaf in _leaves(port, port["name"]):
                assert leaf["type"] in _TYPES, where
                path = re.sub(r"_\d+(?=__|$)", "_k", path)
                types.setdefault((name, path), set()).add(leaf["type"].removeprefix("un"))
    assert len(types) > 500
    assert {key: found for key, found in types.items() if len(found) > 1} == {}


_SCHEMA = json.loads((Path(__file__).parent.parent / "docs" / "block-json.schema.json").read_text())
_JSON_TYPES = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float),
    "null": type(None),
}  # fmt: skip


def _faults(value, schema: dict, where: str = "$"):
    """Yields what ``value`` does not obey of JSON Schema's keywords, those that the schema has."""
    if "$ref" in schema:
        yield from _faults(value, _SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")], where)
        return
    known = {"$schema", "$defs", "title", "type", "required", "properties", "items", "enum",
             "additionalProperties", "minimum", "const"}  # fmt: skip
    assert set(schema) <= known, schema
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and (
        isinstance(value, bool) or not any(isinstance(value, _JSON_TYPES[kind]) for kind in kinds)
    ):
        yield f"{where}: {value!r} is not of type {kinds}"
        return
    if value not in schema.get("enum", [value]) or value != schema.get("const", value):
        yield f"{where}: {value!r} is not allowed"
    if "minimum" in schema and value < schema["minimum"]:
        yield f"{where}: {value!r} is below {schema['minimum']}"
    if isinstance(value, dict):
        yield from (f"{where}: no {key}" for key in schema.get("required", ()) if key not in value)
        others = schema.get("additionalProperties", {})
        for key, each in value.items():
            inner = schema.get("properties", {}).get(key, others)
            if inner is False:
                yield f"{where}: {key} is unknown"
            else:
                yield from _faults(each, inner, f"{where}.{key}")
    if isinstance(value, list) and "items" in schema:
        for n, each in enumerate(value):
            yield from _faults(each, schema["items"], f"{where}[{n}]")


def _references(found) -> set[tuple[str, str]]:
    """(key of the description, name) of all enums and formats that ``found`` names."""
    if isinstance(found, list):
        return set().union(*map(_references, found))
    if not isinstance(found, dict):
        return set()
    own = {
        (key, found[word])
        for word, key in (("enum", "enums"), ("format", "formats"))
        if isinstance(found.get(word), str)
    }
    return own.union(*map(_references, found.values()))


def test_the_json_of_every_block_obeys_the_schema():
    """The JSON without its RAMs obeys the schema. A name that the JSON uses is explained in it.

    Shown to fail: a stream without ``cycles``; a key ``rate`` that the schema does not know.
    """
    count = 0
    for name, registered in all_blocks().items():
        for label, config in {"default": registered.config, **registered.configs}.items():
            block = registered.component(config)
            block._MustUse__silence = True
            description = json.loads(json.dumps(outline(block, name)))
            assert list(_faults(description, _SCHEMA)) == [], f"{name} {label}"
            for key, each in _references(description["ports"]):
                assert each in description[key], f"{name} {label}: {key} {each}"
            count += 1
    assert count > 100


def test_a_written_description_obeys_the_schema(tmp_path):
    """The JSON with its RAMs, clock and reset obeys the schema, under names of the caller's."""
    registered = all_blocks()["memory_shared"]
    build("memory_shared", registered.config, tmp_path, top="rows", prefix="chip_")
    description = json.loads((tmp_path / "chip_rows.json").read_text())
    assert list(_faults(description, _SCHEMA)) == []
    assert {memory["module"] for memory in description["memories"]} <= set(description["modules"])
    assert {port["role"] for port in description["ports"]} >= {"clock", "reset"}


def test_the_schema_finds_faults():
    block = all_blocks()["fp16_fma"]
    component = block.component(block.config)
    component._MustUse__silence = True
    description = outline(component, "fp16_fma")
    for spoil, message in (
        (lambda found: found.update(schema=1), "$.schema: 1 is not allowed"),
        (lambda found: found.update(rate=1), "$: rate is unknown"),
        (lambda found: found["streams"][0].pop("cycles"), "$.streams[0]: no cycles"),
        (lambda found: found["ports"][0].update(width=0), "$.ports[0].width: 0 is below 1"),
        (lambda found: found.update(name=3), "$.name: 3 is not of type ['string']"),
    ):
        wrong = json.loads(json.dumps(description))
        spoil(wrong)
        assert list(_faults(wrong, _SCHEMA)) == [message]


def test_commands_and_registers_of_the_accelerator():
    """The words that golden.kllm.isa encodes follow from the JSON alone."""
    registered = all_blocks()["kllm_accelerator"]
    block = registered.component(registered.configs["small"])
    block._MustUse__silence = True
    commands: CommandSet = type(block).commands
    description = outline(block, "kllm_accelerator")
    table = description["commands"]
    rng = random.Random(3)
    for command in table["commands"]:
        words = [0] * table["words"]
        unit, tag = rng.choice(table["waits"]), rng.getrandbits(16)

        def put(place, value, words=words):
            words[place["word"]] |= value << place.get("offset", 0)

        put(table["opcode"], command["opcode"])
        put(table["tag"], tag)
        put(unit, 77)
        operands = {each["name"]: rng.getrandbits(each["width"]) for each in command["operands"]}
        for each in command["operands"]:
            put(each, operands[each["name"]])
        opcode, tag_read, after, read = commands.decode(words)
        assert (opcode.name, tag_read, read) == (command["name"], tag, operands)
        assert {each.name: count for each, count in after.items() if count} == {unit["unit"]: 77}
    names = [register["name"] for register in description["registers"]]
    assert {"COMMAND", "STATUS", "READBACK"} <= {name.upper() for name in names}


def test_ops_ignore_the_fields_that_they_do_not_name():
    """A second table gets other junk in every field that ``PageOp.operands`` leaves out."""
    registered = all_blocks()["paging_page_table"]
    config = registered.configs["small"]
    rng = random.Random(8)
    pairs = Traffic(config, rng).pairs(3000)
    other = PageTable(config)
    for command, answer in pairs:
        if command.op in tuple(PageOp):
            unused = set(WIDTHS) - set(PageOp(command.op).operands)
            command = command._replace(**{name: rng.getrandbits(WIDTHS[name]) for name in unused})
        assert other.command(command) == answer
    block = registered.component(config)
    block._MustUse__silence = True
    layout = {port["name"]: port for port in port_descriptions(block)}
    names = {field["name"] for field in layout["command__payload"]["fields"]}
    assert {name for op in PageOp for name in op.operands} == names - {"op"}


def test_rate_of_a_stream():
    timing = Timing(latency=1, interval=Fraction(3), words=(("i", 2), ("o_k", 1), ("fast", 9)))
    assert timing.rate("i") == Fraction(2, 3)
    assert timing.rate("o_12") == Fraction(1, 3)
    assert timing.rate("o_x") == timing.rate("other") == timing.rate("fast") == 1


def test_streams_with_the_names_of_axi():
    registered = all_blocks()["index_reducer"]
    block = registered.component(registered.configs["small"])
    design = convert(block, "index_reducer", "axi")
    assert list(_faults(json.loads(json.dumps(design.description)), _SCHEMA)) == []
    i, o = design.description["streams"]
    assert (i["name"], i["payload"], i["last"]) == ("s_axis_i", "s_axis_i_tdata", "s_axis_i_tlast")
    assert (o["name"], o["valid"], o["packet"]) == ("m_axis_o", "m_axis_o_tvalid", None)
    ports = {port["name"]: port for port in design.description["ports"]}
    assert [field["name"] for field in ports["s_axis_i_tdata"]["fields"]] == ["count", "weight"]
    assert ports["s_axis_i_tlast"]["type"] == "bool"
    assert wrapped_streams([{"name": "axi__ar", "direction": "output"}], []) == []


class _Color(enum.IntEnum):
    RED = 0  # of blood
    GREEN = 5
    LONG_NAME = 6  # wrapped


def _word(shape, kind=None) -> dict:
    return word(shape, kind, Codes(), "x")


@pytest.mark.parametrize(
    ("shape", "kind", "wanted"),
    [
        (1, None, {"type": "bool", "element_width": 1}),
        (range(2, 5), None, {"type": "unsigned", "minimum": 2, "maximum": 4, "element_width": 3}),
        (signed(7), fixed(-24), {"type": "signed", "scale": -24, "element_width": 7}),
        (8, NUMBER, {"type": "unsigned", "element_width": 8}),
        (8, index_of("pages"), {"type": "index", "of": "pages", "element_width": 8}),
        (1, mask_of("lanes"), {"type": "mask", "of": "lanes", "element_width": 1}),
        (_Color, None, {"type": "enum", "enum": "_Color", "element_width": 3}),
        (32, BYTES, {"type": "bits", "element_width": 8, "shape": [4], "stride": [8]}),
        (
            data.ArrayLayout(data.ArrayLayout(3, 4), 2),
            BITS,
            {"type": "bits", "element_width": 3, "shape": [2, 4], "stride": [12, 3]},
        ),
        (
            data.ArrayLayout(32, 5),
            FP16,
            {"type": "float", "format": "FP16", "element_width": 16, "shape": [5, 2],
             "stride": [32, 16]},
        ),
        (
            data.StructLayout({"0": signed(9), "1": signed(4)}),
            None,
            {"type": "signed", "shape": [2],
             "elements": [{"offset": 0, "width": 9}, {"offset": 9, "width": 4}]},
        ),
    ],
)  # fmt: skip
def test_word(shape, kind, wanted):
    assert _word(shape, kind) == wanted


@pytest.mark.parametrize(
    ("shape", "kind", "message"),
    [
        (12, FP16, "x: 12 bits are no whole number of elements of 16"),
        (3, Status, "x: Status has the value 14: not 3 bits"),
        (data.ArrayLayout(16, 2), named(FP16, _Color), "x: 2 elements have 3 names"),
        (data.UnionLayout({"a": 1}), None, "x: a layout of type UnionLayout has no description"),
        (data.StructLayout({"0": 1, "1": signed(4)}), None, "x: the elements differ in kind"),
    ],
)
def test_refused_words(shape, kind, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        _word(shape, kind)


@pytest.mark.parametrize(
    ("shape", "missing"),
    [
        (8, ["x"]),
        (data.ArrayLayout(8, 2), ["x"]),
        (Payload(a=(8, "text"), b=(8, "text", BITS)), ["x.a"]),
        (data.ArrayLayout(Payload(a=(Payload(b=(8, "text")), "text")), 2), ["x.a.b"]),
        (Payload(a=(1, "text"), b=(range(9), "text")), []),
    ],
)
def test_words_without_a_kind(shape, missing):
    codes = Codes()
    word(shape, None, codes, "x")
    assert codes.missing == missing


def test_texts_of_codes():
    """Failed before: no text for OUTLIER_COUNT of golden.kllm.format.Status, which is wrapped."""
    assert member_texts(_Color) == {"RED": "of blood", "LONG_NAME": "wrapped"}
    codes = Codes()
    assert codes.enum(Op) == "Op"
    assert codes.enums["Op"]["FREE"] == {
        "value": 4, "meaning": "the sequence and all its pages", "operands": ["sequence"],
    }  # fmt: skip
    other = enum.IntEnum("Op", {"OPEN": 3})
    with pytest.raises((ValueError, OSError, TypeError)):
        codes.enum(other)


def test_two_enumerations_of_a_name():
    """The second one has its room's name first. Failed before: ``two enumerations are called``."""
    codes = Codes()
    assert [codes.enum(each) for each in (Op, MillionOp, Op, MillionOp)] == [
        "Op", "MillionOp", "Op", "MillionOp",
    ]  # fmt: skip
    assert codes.enums["Op"]["READ"]["value"] == 2
    assert codes.enums["MillionOp"]["APPEND"]["value"] == 2
    codes.enums["PagingOp"], codes.enums["Op"] = {}, {}
    with pytest.raises(ValueError, match="two enumerations are called PagingOp"):
        codes.enum(Op)


class _Block(Block):
    def __init__(self):
        layout = Payload(
            pair=(Payload(a=(4, "low", NUMBER), b=(1, "high")), "both"), last=(1, "ends it")
        )
        super().__init__(
            Config(),
            {
                "i": In(stream.Signature(layout), "Words in."),
                "o": Out(stream.Signature(16), "Words out.", FP16).array(2),
                "enable": In(1, "Runs."),
            },
        )


def test_ports_and_streams_of_a_block():
    block = _Block()
    block._MustUse__silence = True
    ports = port_descriptions(block)
    by_name = {port["name"]: port for port in ports}
    pair = by_name["i__payload"]["fields"][0]
    assert (pair["type"], pair["offset"], pair["width"]) == ("struct", 0, 5)
    assert [(each["name"], each["offset"]) for each in pair["fields"]] == [("a", 0), ("b", 4)]
    assert by_name["o_1__payload"]["format"] == "FP16"
    assert by_name["enable"]["type"] == by_name["i__valid"]["type"] == "bool"
    i, o_0, _ = streams(ports, None)
    assert i == {
        "name": "i", "direction": "input", "meaning": "Words in.", "payload": "i__payload",
        "valid": "i__valid", "ready": "i__ready", "packet": {"last": "last", "meaning": "ends it"},
        "words": 1, "cycles": 1,
    }  # fmt: skip
    assert (o_0["name"], o_0["direction"], o_0["packet"]) == ("o_0", "output", None)


_CHILD = """attribute \\top 1
module \\child
  memory width 8 size 32 \\words
  cell $memrd_v2 \\r
    parameter \\MEMID "\\\\words"
  end
  cell $memwr_v2 \\w
    parameter \\MEMID "\\\\words"
  end
  cell $memrd_v2 \\r2
    parameter \\MEMID "\\\\words"
  end
end
"""
_TOP = """module \\top
  cell \\middle \\a
  end
  cell \\middle \\b
  end
  cell \\child \\c
  end
end
module \\middle
  cell \\child \\x
  end
  cell \\child \\y
  end
end
"""


def test_memories_are_counted_over_the_hierarchy():
    child = {"module": "child", "width": 8, "depth": 32, "read_ports": 2, "write_ports": 1}
    assert memories([("child", _CHILD), ("top", _TOP)], "top") == [{**child, "count": 5}]


def test_memories_of_a_block():
    registered = all_blocks()["memory_shared"]
    description = describe(registered.component(registered.config), "memory_shared")
    (memory,) = description["memories"]
    config = registered.config
    assert (memory["width"], memory["depth"], memory["count"]) == (config.width, config.depth, 1)
    assert (memory["read_ports"], memory["write_ports"]) == (1, 1)
    assert memory["module"] in description["modules"]


def test_fields_of_a_layout_are_in_order():
    layout = Payload(a=(3, "first", NUMBER), b=(data.ArrayLayout(2, 3), "second", BITS))
    assert fields(layout, Codes(), "x") == [
        {"name": "a", "offset": 0, "width": 3, "meaning": "first", "type": "unsigned",
         "element_width": 3},
        {"name": "b", "offset": 3, "width": 6, "meaning": "second", "type": "bits",
         "element_width": 2, "shape": [3], "stride": [2]},
    ]  # fmt: skip

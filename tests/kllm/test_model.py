"""A whole model on the golden machine: its layers, its head, its image on disk.

Shown to fail:

- K and V of every layer appended to layer 0's pages;
- the angles of position 0 for every token;
- a file whose size alone is checked.
"""

import dataclasses
import json
import shutil

import pytest
import torch

from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float, float_from_bits
from golden.kllm.cache import CacheUnit, Place
from golden.kllm.config import MACHINES, SlotShape, VectorShape
from golden.kllm.layer.compiler import compile_layer
from golden.kllm.layer.host import memories
from golden.kllm.layer.layout import Job
from golden.kllm.layer.shape import LayerOptions
from golden.kllm.machine import Machine
from golden.kllm.model.compiler import compile_model
from golden.kllm.model.host import ModelHost
from golden.kllm.model.layout import model_layout
from golden.kllm.model.program import check_model, largest_chunk, pass_program, pieces
from golden.llm.kllm import pack
from golden.llm.kllm.model import model_shape
from golden.llm.pack import main
from golden.manifest import PackError
from golden.oaken.kv_engine import Request
from golden.paging.format import Op
from tests.kllm import model_example as example

SMALL = example.paged()
TOKENS = [3, 141, 59, 26, 53]


def logits(host, tokens, chunk):
    """(T, vocabulary) FP16 words of all tokens, ``chunk`` in a pass."""
    made = []
    for first in range(0, len(tokens), chunk):
        some = tokens[first : first + chunk]
        program = pass_program(host.layout, Job(len(some), first), len(some))
        made.append(host.run(program, some).logits)
    return torch.cat(made)


def test_layers_of_a_model_are_layers():
    """The model of one layer gives what ``run_layer`` gives after the same tokens."""
    image = example.image(32, 1)
    loaded = example.checkpoint()
    ids = torch.randint(0, 150, (256,), generator=torch.Generator().manual_seed(2))
    source = pack.trained(loaded, ids, LayerOptions(glu="exact", center=True), SMALL)
    compiled = compile_layer(source.layer(0), SMALL, 1)
    weight = loaded.model.model.embed_tokens.weight.detach().double()
    half = float_from_bits(bits_from_float(weight), FP16)
    cos, sin = loaded.model.model.rotary_emb(torch.zeros(1, 9, 1), torch.arange(9)[None])
    host = ModelHost(image)
    cached = CacheUnit(SMALL.cache, SMALL.batch)  # of the layers alone
    cached.begin(image.thresholds)
    sequence = cached.request(Request(Op.OPEN)).sequence
    for place, token in enumerate(TOKENS[:3]):
        angles = (each[0, place : place + 1, :16] for each in (cos, sin))
        machine = Machine(SMALL, *memories(compiled, half[token][None], *angles))
        machine.cache = cached
        cached.batch[0] = Place(sequence, place)
        assert not any(result.status for result in machine.run(compiled.program.words))
        words = torch.tensor(machine.readback)
        wanted = torch.stack((words & 0xFFFF, words >> 16), dim=1).flatten()
        # Without logits, as the head frees the rows of x.
        host.run(pass_program(host.layout, Job(1, place), 0), [token])
        assert torch.equal(host.machine.vector[:5].flatten(), wanted)


@pytest.mark.parametrize("head_dim", [32, 64])
def test_a_batch_gives_what_single_tokens_give(head_dim):
    image = example.image(head_dim)
    chunk = largest_chunk(image.layout, 8, 0)
    assert 1 < chunk <= image.layout.config.batch
    single = logits(ModelHost(image), TOKENS, 1)
    assert torch.equal(single, logits(ModelHost(image), TOKENS, chunk))
    real = example.checkpoint(head_dim).model(torch.tensor([TOKENS])).logits[0].double().detach()
    both = torch.stack((float_from_bits(single, FP16).flatten(), real.flatten()))
    assert float(torch.corrcoef(both)[0, 1]) > 0.7


@pytest.mark.parametrize("product", ["fixed16", "fixed12"])
def test_a_model_of_half_packets_is_that_of_whole_ones(product):
    """The same layers and head in both machines: every logit, and packets of half the rows.

    Shown to fail: a head with a codebook of its own kind.
    """
    half, whole = (
        dataclasses.replace(SMALL, product=product, antisymmetric=each) for each in (True, False)
    )
    model, layout = example.quantized(half, layers=2)
    layers = list(model.layers)
    images = [
        compile_model(
            dataclasses.replace(model, layers=iter(layers)),
            model_layout(layout.shape, layout.options, each),
        )
        for each in (half, whole)
    ]
    assert images[0].layout.rows < images[1].layout.rows
    made = [logits(ModelHost(image), TOKENS, 1) for image in images]
    assert torch.equal(*made)
    assert float(float_from_bits(made[0], FP16).std()) > 0


def test_half_packets_refuse_other_codebooks():
    half = dataclasses.replace(SMALL, antisymmetric=True)
    model, layout = example.quantized(SMALL, layers=1)
    layout = model_layout(layout.shape, layout.options, half)
    with pytest.raises(ConfigError, match=r"^codebook_b must be antisymmetric: c\[i\] = -c\[15"):
        compile_model(model, layout)


def test_sequences_of_a_model_do_not_meet():
    """A second host on the same cache has a sequence of its own, and the same logits."""
    image = example.image()
    first, second = ModelHost(image), ModelHost(image)
    second.machine.cache = first.machine.cache
    second.sequence = first.machine.cache.request(Request(Op.OPEN)).sequence
    assert second.sequence != first.sequence
    alone = logits(ModelHost(image), TOKENS, 1)
    for place, token in enumerate(TOKENS):
        program = pass_program(image.layout, Job(1, place))
        made = [host.run(program, [token]).logits[0] for host in (first, second)]
        assert torch.equal(made[0], alone[place])
        assert torch.equal(made[1], alone[place])


def test_pieces_of_the_head():
    layout = example.image().layout
    assert sum(pieces(layout, 1)) == example.VOCABULARY
    narrow = dataclasses.replace(SMALL, vectors=VectorShape(rows=24))
    few = dataclasses.replace(layout, config=narrow)
    assert len(pieces(few, 1)) > 1
    assert sum(pieces(few, 1)) == example.VOCABULARY


def test_image_comes_back(tmp_path):
    made = example.packed(tmp_path / "model")
    assert made.layout == example.image().layout
    for found, wanted in zip(made.image().ports, example.image().ports, strict=True):
        assert bytes(found) == bytes(wanted)
    again = example.packed(tmp_path / "model")
    assert again.identity == made.identity
    assert torch.equal(made.image().thresholds, example.image().thresholds)
    image = made.image()
    image.data[:] = 0
    assert bytes(pack.load(tmp_path / "model", SMALL).image().data) != bytes(image.data)


def test_refused_folders(tmp_path):
    folder = tmp_path / "model"
    example.packed(folder)
    with pytest.raises(PackError, match=r"config\.\S+ must be"):
        pack.load(folder, MACHINES["smollm2"])
    port = folder / "port_00.bin"
    data = bytearray(port.read_bytes())
    data[100] ^= 1
    port.write_bytes(data)
    with pytest.raises(PackError, match="sha256 must be"):
        pack.load(folder, SMALL)
    port.write_bytes(data[:-8])
    with pytest.raises(PackError, match=r"must have .* bytes"):
        pack.load(folder, SMALL)
    port.unlink()
    with pytest.raises(PackError, match="cannot be read"):
        pack.load(folder, SMALL)
    shutil.rmtree(folder)
    example.packed(folder)
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    del manifest["layout"]["kind"]
    file.write_text(json.dumps(manifest))
    with pytest.raises(PackError, match="not of a whole model"):
        pack.load(folder, SMALL)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"layout": []}, r"layout must be an object, not \[\]"),
        ({"files": {"data.bin": 3}}, "files.data.bin must have bytes, sha256, width and words"),
        ({"model": {}}, "model is damaged: 'shape'"),
        ({"model": {"shape": [], "options": {}}}, "model is damaged"),
    ],
)
def test_damaged_manifests(change, reason, tmp_path):
    """Shown to fail without the check that ``layout`` is an object."""
    example.packed(tmp_path)
    file = tmp_path / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(PackError, match=reason):
        pack.load(tmp_path, SMALL)


def test_only_known_architectures(tmp_path, capsys):
    """A model of a type that nobody describes is refused. Shown to fail without a list of them."""
    known = example.checkpoint().model
    known.save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(file.read_text().replace('"llama"', '"gpt2"'))
    output = tmp_path / "x"
    machine = ["--config", "small_cache", "--context", "16"]
    assert main(["--all", "--model", str(tmp_path / "model"), *machine, "-o", str(output)]) == 2
    assert "model_type must be one of " in capsys.readouterr().err
    assert not output.exists()


def test_a_model_that_does_not_fit():
    layout = example.image().layout
    slots = dataclasses.replace(SMALL, slot=SlotShape(slots=4, elements=96, outliers_max=64))
    cases = [
        (slots, r"MachineConfig\.slot\.elements must be 128"),
        (dataclasses.replace(SMALL, batch=0), r"MachineConfig\.batch must be 1"),
        (
            dataclasses.replace(SMALL, cache=dataclasses.replace(SMALL.cache, max_tokens=39)),
            r"cache\.max_tokens must be 40",
        ),
        (dataclasses.replace(SMALL, vectors=VectorShape(rows=24)), "does not fit: no .* rows"),
    ]
    for machine, message in cases:
        with pytest.raises(ConfigError, match=message):
            check_model(model_layout(layout.shape, layout.options, machine))
    with pytest.raises(ConfigError, match="context must be at most 40, not 41"):
        pass_program(layout, Job(1, 40))
    shape = dataclasses.replace(layout.shape, layers=1024, vocabulary=1 << 20)
    huge = dataclasses.replace(shape, layer=dataclasses.replace(shape.layer, hidden=16000))
    wide = dataclasses.replace(SMALL, ports=dataclasses.replace(SMALL.ports, ports=1, bits=32))
    with pytest.raises(ConfigError, match="words of each weight port; commands address"):
        model_layout(huge, layout.options, wide)


def test_refused_models():
    loaded = example.checkpoint()
    wanted = LayerOptions(), SMALL, None, example.CONTEXT
    loaded.model.config.hidden_act = "mish"
    try:
        with pytest.raises(ConfigError, match=r"hidden_act must be silu or .* or tanh or .* mish"):
            pack.checked_layout(loaded, *wanted)
    finally:
        loaded.model.config.hidden_act = "silu"
    pack.checked_layout(loaded, *wanted)
    layer = example.image().layout.shape.layer
    with pytest.raises(ConfigError, match=r"context must be in 2\.\.16383, not 1|context must be"):
        model_shape(loaded.model, 4, 1, layer)


def test_a_layer_that_computes_something_else():
    """Its configuration says SiLU, its second layer has GELU. Shown to fail without the measure."""
    loaded = example.checkpoint()
    mlp = loaded.model.model.layers[1].mlp
    ids = torch.arange(100)
    source = pack.trained(loaded, ids, LayerOptions(), SMALL)
    layout = pack.checked_layout(loaded, LayerOptions(), SMALL, None, example.CONTEXT)
    silu, mlp.act_fn = mlp.act_fn, torch.nn.GELU()
    try:
        made = pack.quantize_model(loaded, source, layout, [ids], lambda _line: None)
        with pytest.raises(ConfigError, match=r"^layer 1: the float reference must be "):
            list(made.layers)
    finally:
        mlp.act_fn = silu


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--all", "--layer", "3"], "--all takes no --layer and no --tokens"),
        (["--layers", "3"], "--layers needs --all"),
        (["--all", "--block", "vq_gemv"], "--all does not apply to vq_gemv"),
        (["--all", "--layers", "99"], "--layers must be 1..30, not 99"),
    ],
)
def test_command_refuses(words, reason, capsys, tmp_path):
    try:
        status = main([*words, "-o", str(tmp_path / "x")])
    except SystemExit as error:
        status = error.code
    shown = capsys.readouterr().err
    assert status == 2
    assert reason in shown
    assert shown.count("\n") == 1
    assert not (tmp_path / "x").exists()

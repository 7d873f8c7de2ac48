"""tb.faults.toggles on a real model: what is added to a block is reported as it changes."""

import shutil

import tb.simulate.run
from synth.modules import module_texts
from tb.faults import toggles
from tb.faults.mutate import collect

ADDED = """\
  reg [63:0] held;
  reg [3:0] count;
  reg risen;
  reg unused_memory [0:1];
  always @(posedge clk) begin
    held <= 64'd0;
    count <= rst ? 4'd0 : count + 4'd1;
    risen <= !rst | risen;
    unused_memory[0] <= 1'b0;
  end
endmodule
"""


def test_added_registers(seed):
    """Shown to fail: registers that start at random values."""
    first = collect("stream_skid", seed)[0]

    def added(design) -> str:
        texts = module_texts(design.verilog)
        texts[design.name] = texts[design.name].replace("endmodule\n", ADDED)
        return toggles.only_counting("".join(texts.values()), [design.name])

    model = tb.simulate.run.build_model(first.block, wrap=first.wrap, transform=added, covered=True)
    text = module_texts(added(model.design))[model.design.name]
    before = None
    for each in (seed, seed + 1):
        work = tb.simulate.run.run_model(model, first.module, **first.arguments | {"seed": each})
        counted = toggles.edges((work / tb.simulate.run.COVERAGE).read_text(), model.design.name)
        shutil.rmtree(work)
        found = toggles.never_change(text, counted)
        assert (found.pop("held"), found.pop("risen")) == ("63:0", "0")
        assert not {"count", "unused_memory"} & set(found)
        assert before is None or found == before
        before = found
    assert sum(signal == "held" for signal, _, _ in counted) == 128

"""The part of a testbench that starts the episodes and judges their ends."""

from collections.abc import Iterator

from hdl.kit.bench import Bench

# Chances of an idle and of a stall cycle out of 256; whether a sink is ready only after valid.
FLOWS = ((0, 0, 0), (96, 96, 0), (32, 192, 1), (192, 32, 0))
_SILENCE = 20_000  # cycles without a transfer that are a hang; the longest computation takes 8,192
_LIVELOCK = 5_000_000  # cycles of one episode
PROGRESS = 1_000  # cycles of an episode after which it prints a line
SETTLE = 40  # cycles after the last word in which nothing may come

_STATE = """\
  localparam EPISODES = {episodes};
  localparam FLOWS = {flows};
  localparam PROGRESS = {progress};  // cycles of an episode from one line to the next
  localparam SETTLE = {settle};  // cycles in which nothing more may come
  localparam SILENCE = {silence};  // cycles without a transfer: a hang
  localparam LIVELOCK = {livelock};  // cycles of an episode
  reg clk, rst, restart, scramble, running, late, ended, compare;
  reg [31:0] flow, episode, idle, stall;
  reg [31:0] first, earlier, moved, total, quiet, silent, cycles;
  reg resets[0:EPISODES];
  reg unread;  // a file of vectors is missing or cut"""

_START = """\
    clk = 1'b0; rst = 1'b1; restart = 1'b1; scramble = 1'b1; running = 1'b0;
    late = 1'b0; ended = 1'b0; compare = 1'b0;
    flow = 0; episode = 0; idle = 0; stall = 0;
    first = 0; earlier = 0; moved = 0; total = 0; quiet = 0; silent = 0; cycles = 0;
  end

  // A block of its own: Verilator takes a value across the waits of one block.
  initial begin
    #1;
    for (flow = 0; flow < FLOWS && !ended; flow = flow + 1) begin
      case (flow)"""

_RESET = """\
  // Junk on every input during the reset; the inputs are quiet in its last cycle.
  task reset_block;
    begin
      @(negedge clk); #1 rst = 1'b1; scramble = 1'b1;
      repeat (3) @(negedge clk);
      #1 scramble = 1'b0;
      repeat (2) @(negedge clk);
      #1 rst = 1'b0; restart = 1'b0;
    end
  endtask
"""

_EPISODE = """\
  task run_episode;
    begin
      running = 1'b1; quiet = 0; silent = 0; cycles = 0;
      first = {transfers};
      earlier = first;
      while (quiet < SETTLE && !ended) begin
        @(negedge clk); #1;
        moved = {transfers};
        silent = moved == earlier ? silent + 1 : 0;
        earlier = moved;
        cycles = cycles + 1;
        if (cycles % PROGRESS == 0) begin
          $display("{block}: flow %0d of %0d, episode %0d of %0d, cycle %0d, %0d transfers",
                   flow + 1, FLOWS, episode + 1, EPISODES, cycles, moved);
          $fflush;
        end
        quiet = {done} ? quiet + 1 : 0;
        if (any_failed) give_up;
        else if (silent > SILENCE || cycles > LIVELOCK) begin
          $display("%0t: no end", $time);"""

_GIVE_UP = """\
  task give_up;
    begin
      ended = 1'b1;
      $display("FAIL {block}: flow %0d, episode %0d, cycle %0d",
               flow, episode, cycles);
      $stop;  // with vvp -N and in Verilator: an exit status
    end
  endtask"""


def state(bench: Bench) -> str:
    """Declarations of the sequencer."""
    return _STATE.format(
        episodes=len(bench.episodes), flows=len(FLOWS), settle=SETTLE, silence=_SILENCE,
        livelock=_LIVELOCK, progress=PROGRESS,
    )  # fmt: skip


def sequencer(bench: Bench, parts: list[str]) -> Iterator[str]:
    """Lines of the clock, of the episodes and of their tasks.

    parts: names of what moves words, each with signals ``_moved`` and ``_complete``.
    """
    yield "  always #5 clk = !clk;"
    yield ""
    yield from _episodes(bench)
    yield ""
    yield _RESET
    transfers = " + ".join(f"{name}_moved" for name in parts) or "0"
    done = "all_complete && all_equal" if bench.outputs else "all_complete"
    yield _EPISODE.format(block=bench.block, transfers=transfers, done=done)
    for stream in bench.streams:
        yield f"          if (!{stream.name}_complete)"
        yield f'            $display("{stream.name}: %0d words moved", {stream.name}_moved);'
    for port in bench.outputs:
        yield from _compared(port["name"], port["width"])
    yield "          give_up;"
    yield "        end"
    yield "      end"
    yield "      total = total + moved - first;"
    yield "      running = 1'b0;"
    yield "    end"
    yield "  endtask"
    yield ""
    yield _GIVE_UP.format(block=bench.block)


def _episodes(bench: Bench) -> Iterator[str]:
    yield "  initial begin"
    arrays = {"resets": "resets"}
    arrays |= {port["name"]: f"values_{port['name']}" for port in (*bench.inputs, *bench.outputs)}
    for file, array in arrays.items():
        yield f"    {array}[EPISODES] = 0;"
        yield f'    $readmemh("{bench.file(file)}", {array});'
    whole = " && ".join(f"{array}[EPISODES] === 1" for array in arrays.values())
    yield f"    unread = !({whole});"
    yield '    if (unread) $display("a file of vectors is missing or cut");'
    for port in bench.inputs:
        yield f"    port_{port['name']} = values_{port['name']}[0];"
    yield _START
    for n, (idle, stall, late) in enumerate(FLOWS):
        yield f"        {n}: begin idle = {idle}; stall = {stall}; late = {late}; end"
    yield "      endcase"
    yield "      for (episode = 0; episode < EPISODES && !ended; episode = episode + 1) begin"
    for port in bench.inputs:
        yield f"        port_{port['name']} = values_{port['name']}[episode];"
    yield "        restart = episode == 0;"
    yield "        if (restart || resets[episode]) reset_block;"
    yield "        run_episode;"
    yield "      end"
    if any(memory.final for memory in bench.memories):
        yield "      compare = 1'b1;"
        yield "      @(negedge clk); #1;"
        yield "      compare = 1'b0;"
        yield "      if (any_failed && !ended) give_up;"
    yield "    end"
    yield "    if (!ended)"
    yield f'      $display("PASS {bench.block}: %0d episodes at %0d flows, %0d transfers",'
    yield "               EPISODES, FLOWS, total);"
    yield "    $finish;"
    yield "  end"


def _compared(name: str, width: int) -> Iterator[str]:
    """An output that an episode waits for."""
    yield f"          if (!({is_equal(name, width)}))"
    yield f'            $display("{name} is %h, golden %h", port_{name},'
    yield f"                     values_{name}[episode][{width - 1}:0]);"


def is_equal(name: str, width: int) -> str:
    """Condition: an output has the value that it must have at the end of the episode, if any."""
    value = f"values_{name}[episode]"
    return f"!{value}[{width}] || port_{name} === {value}[{width - 1}:0]"

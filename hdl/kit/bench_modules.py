"""Verilog-2005 of a kit's testbench that is the same for every block.

``module @`` begins with the name of the testbench: the modules of several kits compile together.

Each array has one element more than it has words. The file's last line, a 1, fills it: a file that
is missing or cut leaves its 0, and the testbench fails.

Sources and sinks act at the falling edge of the clock and look at its rising edge. The sequencer of
``hdl.kit.testbench`` acts a tenth of a cycle after the falling edge. So no simulator can race them.
"""

SOURCE = """\
// Offers the words of a file to a stream of the block, with idle cycles and junk in them.
module @_source #(
    parameter WIDTH = 1,
    parameter WORDS = 1,
    parameter EPISODES = 1,
    parameter SEED = 1,
    parameter FILE = "",
    parameter ENDS = "",
    parameter NAME = ""
) (
    input wire clk,
    input wire restart,
    input wire scramble,
    input wire running,
    input wire [31:0] episode,
    input wire [31:0] idle,
    input wire ready,
    output reg valid,
    output reg [WIDTH-1:0] payload,
    output wire complete,
    output reg [31:0] moved,
    output reg failed
);
  localparam LIMBS = (WIDTH + 31) / 32;
  reg [WIDTH-1:0] words[0:WORDS];
  reg [31:0] ends[0:EPISODES];
  reg [31:0] random;
  reg [LIMBS*32-1:0] junk;
  reg taken;

  assign complete = moved == ends[episode];

  initial begin
    words[WORDS] = 0;
    ends[EPISODES] = 0;
    $readmemh(FILE, words);
    $readmemh(ENDS, ends);
    random = SEED;
    junk = {LIMBS{random}};
    valid = 1'b0;
    payload = junk[WIDTH-1:0];
    moved = 0;
    taken = 1'b0;
    failed = words[WORDS] !== 1 || ends[EPISODES] !== 1;
    if (failed) $display("%0s: a file of vectors is missing or cut", NAME);
  end

  always @(negedge clk) begin
    random = random ^ (random << 13);
    random = random ^ (random >> 17);
    random = random ^ (random << 5);
    junk = {LIMBS{random}};
    if (scramble || !running) begin
      valid <= scramble && random[9];
      payload <= junk[WIDTH-1:0];
    end else if (!valid || taken) begin
      if (!complete && random[7:0] >= idle) begin
        valid <= 1'b1;
        payload <= words[moved];
      end else begin
        valid <= 1'b0;
        payload <= junk[WIDTH-1:0];
      end
    end
  end

  always @(posedge clk) begin
    taken <= 1'b0;
    if (restart) moved <= 0;
    else if (running && valid) begin
      if (ready === 1'b1) begin
        taken <= 1'b1;
        moved <= moved + 1;
      end else if (ready !== 1'b0) begin
        $display("%0t: %0s: ready is unknown", $time, NAME);
        failed <= 1'b1;
      end
    end
  end
endmodule
"""

SINK = """\
// Takes the words of a stream of the block, with stall cycles, and compares them with a file.
module @_sink #(
    parameter WIDTH = 1,
    parameter WORDS = 1,
    parameter EPISODES = 1,
    parameter SEED = 1,
    parameter FILE = "",
    parameter MASKS = "",
    parameter ENDS = "",
    parameter NAME = ""
) (
    input wire clk,
    input wire restart,
    input wire scramble,
    input wire running,
    input wire [31:0] episode,
    input wire [31:0] stall,
    input wire late,
    input wire valid,
    input wire [WIDTH-1:0] payload,
    output reg ready,
    output wire complete,
    output reg [31:0] moved,
    output reg failed
);
  reg [WIDTH-1:0] words[0:WORDS];
  reg [WIDTH-1:0] masks[0:WORDS];
  reg [31:0] ends[0:EPISODES];
  reg [31:0] random;
  reg seen;

  assign complete = moved == ends[episode];

  initial begin
    words[WORDS] = 0;
    masks[WORDS] = 0;
    ends[EPISODES] = 0;
    $readmemh(FILE, words);
    $readmemh(MASKS, masks);
    $readmemh(ENDS, ends);
    random = SEED;
    ready = 1'b0;
    moved = 0;
    seen = 1'b0;
    failed = words[WORDS] !== 1 || masks[WORDS] !== 1 || ends[EPISODES] !== 1;
    if (failed) $display("%0s: a file of vectors is missing or cut", NAME);
  end

  always @(negedge clk) begin
    random = random ^ (random << 13);
    random = random ^ (random >> 17);
    random = random ^ (random << 5);
    if (scramble || !running) ready <= scramble && random[9];
    else ready <= random[7:0] >= stall && (!late || seen);
  end

  always @(posedge clk) begin
    seen <= running && valid === 1'b1 && !ready;
    if (restart) moved <= 0;
    else if (running && valid === 1'b1) begin
      if (complete) begin
        $display("%0t: %0s: a word beyond the expected %0d: %h", $time, NAME, moved, payload);
        failed <= 1'b1;
      end else if (ready) begin
        if ((payload & masks[moved]) !== (words[moved] & masks[moved])) begin
          $display("%0t: %0s: word %0d is %h, golden %h, compared bits %h", $time, NAME, moved,
                   payload, words[moved], masks[moved]);
          failed <= 1'b1;
        end
        moved <= moved + 1;
      end
    end
  end
endmodule
"""

HOLD = """\
// A word that is offered stays until its transfer, and valid is never unknown.
module @_hold #(
    parameter WIDTH = 1,
    parameter NAME = ""
) (
    input wire clk,
    input wire reset,
    input wire valid,
    input wire ready,
    input wire [WIDTH-1:0] payload,
    output reg failed
);
  reg held;
  reg [WIDTH-1:0] shown;

  initial begin
    held = 1'b0;
    failed = 1'b0;
  end

  always @(posedge clk) begin
    held <= !reset && valid === 1'b1 && !ready;
    shown <= payload;
    if (!reset) begin
      if (valid !== 1'b0 && valid !== 1'b1) begin
        $display("%0t: %0s: valid is unknown", $time, NAME);
        failed <= 1'b1;
      end else if (held && !valid) begin
        $display("%0t: %0s: valid fell before the transfer", $time, NAME);
        failed <= 1'b1;
      end else if (held && payload !== shown) begin
        $display("%0t: %0s: the word changed before its transfer", $time, NAME);
        failed <= 1'b1;
      end
    end
  end
endmodule
"""

MEMORY = """\
// A memory on AXI4: INCR bursts of whole words, answered in order, with idle and stall cycles.
// Without an image it holds junk. FAULTS has three words per episode: low, high, response.
module @_memory #(
    parameter ADDRESS = 32,
    parameter DATA = 32,
    parameter IDS = 1,
    parameter SHIFT = 2,
    parameter WORDS = 1,
    parameter [63:0] LOW = 0,
    parameter EPISODES = 1,
    parameter SEED = 1,
    parameter IMAGE = "",
    parameter FINAL = "",
    parameter FAULTS = "",
    parameter NAME = ""
) (
    input wire clk,
    input wire restart,
    input wire scramble,
    input wire reset,
    input wire compare,
    input wire [31:0] episode,
    input wire [31:0] idle,
    input wire [31:0] stall,
    input wire ar_valid,
    output reg ar_ready,
    input wire [ADDRESS-1:0] ar_addr,
    input wire [7:0] ar_len,
    input wire [2:0] ar_size,
    input wire [1:0] ar_burst,
    input wire [IDS-1:0] ar_id,
    output reg r_valid,
    input wire r_ready,
    output reg [DATA-1:0] r_data,
    output reg [1:0] r_resp,
    output reg r_last,
    output reg [IDS-1:0] r_id,
    input wire aw_valid,
    output reg aw_ready,
    input wire [ADDRESS-1:0] aw_addr,
    input wire [7:0] aw_len,
    input wire [2:0] aw_size,
    input wire [1:0] aw_burst,
    input wire [IDS-1:0] aw_id,
    input wire w_valid,
    output reg w_ready,
    input wire [DATA-1:0] w_data,
    input wire [DATA/8-1:0] w_strb,
    input wire w_last,
    output reg b_valid,
    input wire b_ready,
    output reg [1:0] b_resp,
    output reg [IDS-1:0] b_id,
    output wire complete,
    output reg [31:0] moved,
    output reg failed
);
  localparam LIMBS = (DATA + 31) / 32;
  localparam DEPTH = 8;  // bursts that wait
  reg [DATA-1:0] words[0:WORDS];
  reg [DATA-1:0] wanted[0:WORDS];
  reg [63:0] faults[0:3*EPISODES];
  reg [31:0] random;
  reg [LIMBS*32-1:0] junk;
  reg [63:0] read_at[0:DEPTH-1];
  reg [8:0] read_left[0:DEPTH-1];
  reg [IDS-1:0] read_id[0:DEPTH-1];
  reg [31:0] read_in, read_out;
  reg [63:0] write_at[0:DEPTH-1];
  reg [8:0] write_left[0:DEPTH-1];
  reg [IDS-1:0] write_id[0:DEPTH-1];
  reg [31:0] write_in, write_out;
  reg [1:0] worst;
  reg [1:0] answer_resp[0:DEPTH-1];
  reg [IDS-1:0] answer_id[0:DEPTH-1];
  reg [31:0] answer_in, answer_out;
  reg r_taken, b_taken, filled;
  integer n;

  assign complete = read_in == read_out && write_in == write_out && answer_in == answer_out &&
                    !r_valid && !b_valid;

  task fill;
    begin
      for (n = 0; n < WORDS; n = n + 1) begin
        step;
        words[n] = junk[DATA-1:0];
      end
      if (IMAGE != "") $readmemh(IMAGE, words);
    end
  endtask

  task step;
    begin
      random = random ^ (random << 13);
      random = random ^ (random >> 17);
      random = random ^ (random << 5);
      junk = {LIMBS{random}};
    end
  endtask

  function [63:0] place;  // number of the word at an address
    input [63:0] address;
    place = (address - LOW) >> SHIFT;
  endfunction

  function [1:0] response;
    input [63:0] address;
    response = address >= faults[3*episode] && address < faults[3*episode+1] ?
               faults[3*episode+2][1:0] : 2'd0;
  endfunction

  task fail;
    input [63:0] address;
    begin
      $display("%0t: %0s: a burst that no memory takes, at %h", $time, NAME, address);
      failed = 1'b1;
    end
  endtask

  // Whole words in order, within 4 KiB and within the memory.
  function legal;
    input [63:0] address;
    input [7:0] len;
    input [2:0] size;
    input [1:0] burst;
    legal = size === SHIFT[2:0] && burst === 2'd1 && address >= LOW &&
            (address & ((64'd1 << SHIFT) - 1)) === 64'd0 &&
            (address & 64'd4095) + ((len + 64'd1) << SHIFT) <= 4096 &&
            place(address) + len < WORDS;
  endfunction

  initial begin
    random = SEED;
    junk = {LIMBS{random}};
    words[WORDS] = IMAGE == "";
    wanted[WORDS] = FINAL == "";
    faults[3*EPISODES] = 0;
    $readmemh(FAULTS, faults);
    if (FINAL != "") $readmemh(FINAL, wanted);
    fill;
    ar_ready = 1'b0;
    aw_ready = 1'b0;
    w_ready = 1'b0;
    r_valid = 1'b0;
    b_valid = 1'b0;
    r_taken = 1'b0;
    b_taken = 1'b0;
    filled = 1'b0;
    moved = 0;
    failed = words[WORDS] !== 1 || wanted[WORDS] !== 1 || faults[3*EPISODES] !== 1;
    if (failed) $display("%0s: a file of vectors is missing or cut", NAME);
    read_in = 0;
    read_out = 0;
    write_in = 0;
    write_out = 0;
    answer_in = 0;
    answer_out = 0;
    worst = 2'd0;
  end

  always @(negedge clk) begin
    step;
    ar_ready <= scramble ? random[9] : read_in - read_out < DEPTH && random[7:0] >= stall;
    step;
    aw_ready <= scramble ? random[9] :
                write_in - write_out < DEPTH && random[7:0] >= stall;
    step;
    w_ready <= scramble ? random[9] : write_in != write_out && answer_in - answer_out < DEPTH &&
               random[7:0] >= stall;
    step;
    if (reset) begin
      r_valid <= scramble && random[9];
      b_valid <= scramble && random[10];
    end else begin
      if (!r_valid || r_taken) begin
        r_valid <= 1'b0;
        r_data <= junk[DATA-1:0];
        r_resp <= random[17:16];
        r_last <= random[18];
        r_id <= junk[IDS-1:0];
        if (read_in != read_out && random[7:0] >= idle) begin
          r_valid <= 1'b1;
          r_data <= words[place(read_at[read_out%DEPTH])];
          r_resp <= response(read_at[read_out%DEPTH]);
          r_last <= read_left[read_out%DEPTH] == 0;
          r_id <= read_id[read_out%DEPTH];
        end
      end
      step;
      if (!b_valid || b_taken) begin
        b_valid <= 1'b0;
        b_resp <= random[17:16];
        b_id <= junk[IDS-1:0];
        if (answer_in != answer_out && random[7:0] >= idle) begin
          b_valid <= 1'b1;
          b_resp <= answer_resp[answer_out%DEPTH];
          b_id <= answer_id[answer_out%DEPTH];
        end
      end
    end
  end

  always @(posedge clk) begin
    r_taken = 1'b0;
    b_taken = 1'b0;
    if (restart && !filled) begin
      moved = 0;
      fill;
    end
    filled = restart;
    if (compare && FINAL != "")
      for (n = 0; n < WORDS; n = n + 1)
        if (words[n] !== wanted[n]) begin
          $display("%0t: %0s: word %0d is %h, golden %h", $time, NAME, n, words[n], wanted[n]);
          failed = 1'b1;
        end
    if (reset) begin
      read_in = 0;
      read_out = 0;
      write_in = 0;
      write_out = 0;
      answer_in = 0;
      answer_out = 0;
      worst = 2'd0;
    end else begin
      if (r_valid && r_ready === 1'b1) begin
        r_taken = 1'b1;
        moved = moved + 1;
        read_at[read_out%DEPTH] = read_at[read_out%DEPTH] + (1 << SHIFT);
        if (read_left[read_out%DEPTH] == 0) read_out = read_out + 1;
        else read_left[read_out%DEPTH] = read_left[read_out%DEPTH] - 9'd1;
      end
      if (b_valid && b_ready === 1'b1) begin
        b_taken = 1'b1;
        moved = moved + 1;
        answer_out = answer_out + 1;
      end
      if (w_valid === 1'b1 && w_ready) begin
        moved = moved + 1;
        if (w_last !== (write_left[write_out%DEPTH] == 0)) fail(write_at[write_out%DEPTH]);
        if (response(write_at[write_out%DEPTH]) > worst)
          worst = response(write_at[write_out%DEPTH]);
        if (response(write_at[write_out%DEPTH]) == 2'd0)
          for (n = 0; n < DATA / 8; n = n + 1)
            if (w_strb[n] !== 1'b0)
              words[place(write_at[write_out%DEPTH])][8*n+:8] = w_data[8*n+:8];
        write_at[write_out%DEPTH] = write_at[write_out%DEPTH] + (1 << SHIFT);
        if (write_left[write_out%DEPTH] == 0) begin
          answer_resp[answer_in%DEPTH] = worst;
          answer_id[answer_in%DEPTH] = write_id[write_out%DEPTH];
          answer_in = answer_in + 1;
          write_out = write_out + 1;
          worst = 2'd0;
        end else write_left[write_out%DEPTH] = write_left[write_out%DEPTH] - 9'd1;
      end
      if (ar_valid === 1'b1 && ar_ready) begin
        moved = moved + 1;
        if (!legal(ar_addr, ar_len, ar_size, ar_burst))
          fail(ar_addr);
        read_at[read_in%DEPTH] = ar_addr;
        read_left[read_in%DEPTH] = {1'b0, ar_len};
        read_id[read_in%DEPTH] = ar_id;
        read_in = read_in + 1;
      end
      if (aw_valid === 1'b1 && aw_ready) begin
        moved = moved + 1;
        if (!legal(aw_addr, aw_len, aw_size, aw_burst))
          fail(aw_addr);
        write_at[write_in%DEPTH] = aw_addr;
        write_left[write_in%DEPTH] = {1'b0, aw_len};
        write_id[write_in%DEPTH] = aw_id;
        write_in = write_in + 1;
      end
    end
  end
endmodule
"""

// Cells of a routed ECP5 netlist, for simulation: what synth.fpga.netlist writes instances of.
// Sources: Lattice FPGA-DS-02012 (slices), FPGA-TN-02204 (RAMs), FPGA-TN-02205 (multipliers), and the
// documentation of Project Trellis.
// An input that a netlist leaves open is 1 in the device; the writer connects it.

// Half of a carry pair: sum and carry of a LUT and of its lower quarter.
module ecp5_carry #(parameter INJECT = 0)
    (input [15:0] init, input a, b, c, d, cin, output s, cout);
  wire full = init[{d, c, b, a}];
  wire low = init[{2'b00, b, a}];
  assign s = full ^ (INJECT ? 1'b0 : cin);
  assign cout = full ? cin : (INJECT ? 1'b0 : low);
endmodule

// Sixteen words of one bit: read at any time, written at the edge.
module ecp5_lut_ram
    (input [15:0] init, input clk, we, d, input [3:0] wa, ra, output q);
  reg [15:0] words;
  initial words = init;
  always @(posedge clk) if (we) words[wa] <= d;
  assign q = words[ra];
endmodule

// A flip-flop. SET: its value at the start and after a reset; gsr_n is the global reset. A reset
// needs no ce: the writer of netlists refuses the mode in which it does.
module ecp5_ff #(parameter SET = 0, ASYNC = 0)
    (input clk, ce, lsr, gsr_n, d, output reg q);
  wire value = SET ? 1'b1 : 1'b0;
  initial q = SET ? 1'b1 : 1'b0;
  generate
    if (ASYNC) begin
      wire now = lsr | ~gsr_n;
      always @(posedge clk or posedge now)
        if (now) q <= value;
        else if (ce) q <= d;
    end else begin
      always @(posedge clk)
        if (!gsr_n) q <= value;
        else if (lsr) q <= value;
        else if (ce) q <= d;
    end
  endgenerate
endmodule

// The product of two words of 18 bits, each signed or not; no register of it is used.
module ecp5_multiplier
    (input [17:0] a, b, input signed_a, signed_b, output [35:0] p);
  wire signed [18:0] left = {signed_a & a[17], a};
  wire signed [18:0] right = {signed_b & b[17], b};
  wire signed [37:0] product = left * right;
  assign p = product[35:0];
endmodule

// Block RAM of 18,432 bits. A word of 36 bits goes through both ports: the lower half through a.
// MODE: 0 keeps the answer while it writes, 1 gives the word written, 2 the word before.
module ecp5_block_ram #(parameter WIDTH_A = 18, WIDTH_B = 18, MODE_A = 0, MODE_B = 0)
    (input [18431:0] init, input clk_a, ce_a, we_a, clk_b, ce_b, we_b,
     input [13:0] ad_a, ad_b, input [17:0] di_a, di_b, output [17:0] do_a, do_b);
  reg [17:0] words [0:1023];
  reg [17:0] a_held, b_held, pair_held;
  integer n;
  initial for (n = 0; n < 1024; n = n + 1) words[n] = init[18 * n +: 18];

  // Bits of a word of 18 bits that an access of ``width`` bits has.
  function [17:0] mask(input integer width, input [13:0] ad);
    case (width)
      18: mask = {{9{ad[1]}}, {9{ad[0]}}};
      9: mask = ad[3] ? 18'h3FE00 : 18'h001FF;
      4: mask = 18'hF << (ad[3] * 9 + ad[2] * 4);
      2: mask = 18'h3 << (ad[3] * 9 + ad[2:1] * 2);
      default: mask = 18'h1 << (ad[3] * 9 + ad[2:0]);
    endcase
  endfunction
  function integer shift(input integer width, input [13:0] ad);
    case (width)
      18: shift = 0;
      9: shift = ad[3] * 9;
      4: shift = ad[3] * 9 + ad[2] * 4;
      2: shift = ad[3] * 9 + ad[2:1] * 2;
      default: shift = ad[3] * 9 + ad[2:0];
    endcase
  endfunction
  function [17:0] below(input integer width);
    below = (18'h3FFFF >> (18 - width));
  endfunction

  wire [9:0] at_a = ad_a[13:4], at_b = ad_b[13:4];
  wire [17:0] bits_a = mask(WIDTH_A, ad_a), bits_b = mask(WIDTH_B, ad_b);
  wire [17:0] new_a = words[at_a] & ~bits_a | (di_a << shift(WIDTH_A, ad_a)) & bits_a;
  wire [17:0] new_b = words[at_b] & ~bits_b | (di_b << shift(WIDTH_B, ad_b)) & bits_b;
  generate
    if (WIDTH_A == 36) begin
      always @(posedge clk_a) if (ce_a && we_a) begin
        if (ad_a[0]) words[{ad_a[13:5], 1'b0}][8:0] <= di_a[8:0];
        if (ad_a[1]) words[{ad_a[13:5], 1'b0}][17:9] <= di_a[17:9];
        if (ad_a[2]) words[{ad_a[13:5], 1'b1}][8:0] <= di_b[8:0];
        if (ad_a[3]) words[{ad_a[13:5], 1'b1}][17:9] <= di_b[17:9];
      end
    end else begin
      always @(posedge clk_a) if (ce_a) begin
        if (we_a) words[at_a] <= new_a;
        if (!we_a || MODE_A == 2) a_held <= words[at_a] >> shift(WIDTH_A, ad_a) & below(WIDTH_A);
        else if (MODE_A == 1) a_held <= new_a >> shift(WIDTH_A, ad_a) & below(WIDTH_A);
      end
    end
    if (WIDTH_B == 36) begin
      always @(posedge clk_b) if (ce_b && !we_b) begin
        pair_held <= words[{ad_b[13:5], 1'b0}];
        b_held <= words[{ad_b[13:5], 1'b1}];
      end
    end else begin
      always @(posedge clk_b) if (ce_b) begin
        if (we_b && WIDTH_A != 36) words[at_b] <= new_b;
        if (!we_b || MODE_B == 2) b_held <= words[at_b] >> shift(WIDTH_B, ad_b) & below(WIDTH_B);
        else if (MODE_B == 1) b_held <= new_b >> shift(WIDTH_B, ad_b) & below(WIDTH_B);
      end
    end
  endgenerate
  assign do_a = WIDTH_B == 36 ? pair_held : a_held;
  assign do_b = b_held;
endmodule

// Drives a board's top at its pins: clock, and the two lines of its UART.
//
// Commands come on stdin, answers go to stdout, both binary:
//   'S' count:u32 bytes      sends bytes; answers as 'R' does, with what came meanwhile
//   'R' count:u32 cycles:u64 runs until so many bytes have come, or for so many cycles;
//                            answers count:u32 bytes cycle:u64, the cycle of now
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include "Vtop.h"
#include "verilated.h"

static Vtop* top;
static const uint32_t BIT = PINS_BIT;  // cycles
static uint64_t cycle = 0;
static std::vector<uint8_t> received;
static uint32_t wait_rx = 0, bits_rx = 0, shift_rx = 0;

// One cycle; a byte begins with a 0, and each bit is looked at in its middle.
static void tick() {
    top->PINS_CLOCK = 0;
    top->eval();
    top->PINS_CLOCK = 1;
    top->eval();
    ++cycle;
    const uint32_t line = top->PINS_TX & 1;
    if (!bits_rx) {
        if (!line) { bits_rx = 9; wait_rx = BIT + BIT / 2; shift_rx = 0; }
    } else if (!--wait_rx) {
        wait_rx = BIT;
        if (--bits_rx) {
            shift_rx |= line << (8 - bits_rx);
        } else if (line) {
            received.push_back(shift_rx);
        } else {
            std::fprintf(stderr, "cycle %llu: a byte without a stop bit\n", (unsigned long long)cycle);
            std::exit(3);
        }
    }
}

static void bit(uint32_t value) {
    top->PINS_RX = value;
    for (uint32_t n = 0; n < BIT; ++n) tick();
}

template <class T> static T read() {
    T value;
    if (std::fread(&value, sizeof value, 1, stdin) != 1) std::exit(0);
    return value;
}

static void answer() {
    const uint32_t count = received.size();
    std::fwrite(&count, sizeof count, 1, stdout);
    std::fwrite(received.data(), 1, count, stdout);
    std::fwrite(&cycle, sizeof cycle, 1, stdout);
    std::fflush(stdout);
    received.clear();
}

int main(int argc, char** argv) {
    Verilated::commandArgs(argc, argv);
    top = new Vtop;
    top->PINS_RX = 1;
    for (int n = 0; n < 100; ++n) tick();
    received.clear();
    bits_rx = 0;
    for (;;) {
        const uint8_t command = read<uint8_t>();
        if (command == 'S') {
            const uint32_t count = read<uint32_t>();
            std::vector<uint8_t> bytes(count);
            for (auto& each : bytes) each = read<uint8_t>();
            for (uint8_t each : bytes) {
                bit(0);
                for (int n = 0; n < 8; ++n) bit(each >> n & 1);
                bit(1);
            }
        } else {
            const uint32_t count = read<uint32_t>();
            const uint64_t until = cycle + read<uint64_t>();
            while (received.size() < count && cycle < until) tick();
        }
        answer();
    }
}

// The Verilated accelerator with its memories and its clock: registers, data memory, reset.
//
// Programs of tb.native include it. "hdl_ports.h" has the design's ports and the sizes of its
// memories. An error is a ChipError.
#pragma once
#include <algorithm>
#include <deque>
#include <fcntl.h>
#include <set>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "hdl_ports.h"
#include "registers.h"

constexpr uint64_t SILENCE = 200000;  // cycles without any transfer: a hang
constexpr unsigned PAGE_BYTES = 4096;
constexpr unsigned OKAY = 0, SLVERR = 2, DECERR = 3;
constexpr uint64_t PROGRAM_BYTES = 1 << 24;  // room for programs behind the data

// One line: a file that cannot be read, or hardware that breaks a rule.
struct ChipError : std::runtime_error {
    using std::runtime_error::runtime_error;
};
[[noreturn]] inline void fail(const std::string& why) { throw ChipError(why); }

struct Clock {
    uint64_t cycle = 0, moved = 0;  // now; the last transfer
};

// ---------------------------------------------------------------- memories

struct Mapped {
    uint8_t* bytes = nullptr;
    uint64_t size = 0;

    // more: bytes behind the file's, zeros
    explicit Mapped(const std::string& path, uint64_t more = 0) {
        const int file = open(path.c_str(), O_RDONLY);
        struct stat found;
        if (file < 0 || fstat(file, &found)) fail("cannot read " + path);
        const auto own = uint64_t(found.st_size);
        size = own + more;
        void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at != MAP_FAILED)
            at = mmap(at, own, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0);
        close(file);
        if (at == MAP_FAILED) fail("cannot map " + path);
        bytes = static_cast<uint8_t*>(at);
    }
    // Zeros, which take room when they are written.
    explicit Mapped(uint64_t size) : size(size) {
        void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) fail("no room for the pages");
        bytes = static_cast<uint8_t*>(at);
    }
    Mapped(Mapped&& other) noexcept
        : bytes(std::exchange(other.bytes, nullptr)), size(other.size) {}
    ~Mapped() {
        if (bytes) munmap(bytes, size);
    }
};

// Bits of a payload: ports of up to 64 bits are integers, wider ones arrays, both words of 32.
inline uint64_t bits_of(const uint32_t* words, Field field) {
    uint64_t value = 0;
    for (unsigned have = 0, at = field.at; have < field.bits;) {
        const unsigned some = std::min(32 - at % 32, field.bits - have);
        value |= ((words[at / 32] >> at % 32) & mask(some)) << have;
        have += some, at += some;
    }
    return value;
}


// A word that a memory gave or took. strobe: a bit for each byte that was written.
struct Access {
    uint64_t cycle, address, strobe;
    bool is_write, is_error;
};


// The subordinate of one AXI4 read port: bursts in order, the first word after the latency.
class ReadPort {
    struct Burst {
        uint64_t due, address;
        unsigned left;
    };
    std::deque<Burst> bursts;
    bool offered = false;

  public:
    Clock& clock;
    Mapped& memory;
    unsigned word_bytes, latency;
    uint32_t *ar, *r;
    CData *ar_valid, *ar_ready, *r_valid, *r_ready;
    Field addr, len;
    std::set<uint64_t> errors;  // word addresses
    uint64_t words = 0;         // read so far
    std::vector<Access>* log = nullptr;  // of what is read, if anybody wants it

    ReadPort(Clock& clock, Mapped& memory, unsigned word_bytes, unsigned latency)
        : clock(clock), memory(memory), word_bytes(word_bytes), latency(latency) {}

    void restart() {
        bursts.clear();
        offered = false, *r_valid = 0, *ar_ready = 1;
    }
    // What happens at the next edge, from outputs that no input of this cycle changes.
    void step() {
        if (*r_ready && offered) {
            clock.moved = clock.cycle, words++, offered = false;
            Burst& burst = bursts.front();
            if (log) log->push_back({clock.cycle, burst.address, 0, false, response(burst) != OKAY});
            burst.address += word_bytes;
            if (!--burst.left) bursts.pop_front();
        }
    }
    void drive() {
        if (*ar_valid) {
            clock.moved = clock.cycle;
            const uint64_t address = bits_of(ar, addr);
            const unsigned beats = unsigned(bits_of(ar, len)) + 1;
            if (address / PAGE_BYTES != (address + beats * word_bytes - 1) / PAGE_BYTES)
                fail("a burst crosses 4 KiB");
            bursts.push_back({clock.cycle + latency, address, beats});
        }
        offered = !bursts.empty() && bursts.front().due <= clock.cycle;
        *r_valid = offered;
        if (offered) offer();
    }

  private:
    unsigned response(const Burst& burst) const {
        if (!errors.empty() && errors.count(burst.address / word_bytes)) return SLVERR;
        return burst.address + word_bytes > memory.size ? DECERR : OKAY;
    }
    void offer() {
        const Burst& burst = bursts.front();
        const unsigned resp = response(burst);
        const unsigned count = word_bytes / 4;
        uint32_t carry = 0;  // the ID, 0, is the lowest bit
        for (unsigned n = 0; n < count; n++) {
            uint32_t word = 0xDEADBEEF;
            if (resp == OKAY) memcpy(&word, memory.bytes + burst.address + 4 * n, 4);
            r[n] = word << 1 | carry;
            carry = word >> 31;
        }
        r[count] = carry | resp << 1 | uint32_t(burst.left == 1) << 3;
    }
};


// The subordinate of an AXI4 write port: a burst at a time, its answer after the latency.
class WritePort {
    struct Burst {
        uint64_t address;
        unsigned left;
        bool failed;
    };
    struct Ended {
        uint64_t due;
        bool failed;
    };
    std::deque<Burst> bursts;
    std::deque<Ended> ended;
    bool offered = false;

  public:
    Clock& clock;
    Mapped& memory;
    unsigned word_bytes, latency;
    uint32_t *aw, *w;
    CData *b, *aw_valid, *aw_ready, *w_valid, *w_ready, *b_valid, *b_ready;
    Field addr, len, data, strb, resp;
    std::set<uint64_t> errors;  // word addresses
    uint64_t words = 0;         // written so far
    std::vector<Access>* log = nullptr;  // of what is written, if anybody wants it

    WritePort(Clock& clock, Mapped& memory, unsigned word_bytes, unsigned latency)
        : clock(clock), memory(memory), word_bytes(word_bytes), latency(latency) {}

    void restart() {
        bursts.clear(), ended.clear();
        offered = false, *b_valid = 0;
        *aw_ready = *w_ready = 1;
    }
    // What happens at the next edge, from outputs that no input of this cycle changes.
    void step() {
        if (*b_ready && offered) clock.moved = clock.cycle, offered = false, ended.pop_front();
    }
    void drive() {
        if (*aw_valid) {
            clock.moved = clock.cycle;
            const unsigned beats = unsigned(bits_of(aw, len)) + 1;
            const uint64_t address = bits_of(aw, addr);
            if (address / PAGE_BYTES != (address + beats * word_bytes - 1) / PAGE_BYTES)
                fail("a burst crosses 4 KiB");
            bursts.push_back({address, beats, false});
        }
        // Words may come with their address, not before it.
        *w_ready = !bursts.empty();
        if (!bursts.empty() && *w_valid) take_word();
        offered = !ended.empty() && ended.front().due <= clock.cycle;
        *b_valid = offered;
        if (offered) put(*b, resp, ended.front().failed ? SLVERR : OKAY);
    }

  private:
    void take_word() {
        clock.moved = clock.cycle, words++;
        Burst& burst = bursts.front();
        const bool inside = burst.address + word_bytes <= memory.size;
        for (unsigned n = 0; inside && n < word_bytes; n++)
            if (bits_of(w, {strb.at + n, 1}))
                memory.bytes[burst.address + n] = uint8_t(bits_of(w, {data.at + 8 * n, 8}));
        const bool is_error = !inside || errors.count(burst.address / word_bytes);
        if (log) log->push_back({clock.cycle, burst.address, bits_of(w, strb), true, is_error});
        burst.failed |= is_error;
        burst.address += word_bytes;
        if (!--burst.left) ended.push_back({clock.cycle + latency, burst.failed}), bursts.pop_front();
    }
};

// ---------------------------------------------------------------- the accelerator

class Chip {
    std::vector<Mapped> memories;  // the ports', the data memory, the pages of each engine

  protected:
    VerilatedContext context;
    Model model{&context};

  public:
    Clock clock;
    std::vector<ReadPort> ports;  // as memories
    std::vector<WritePort> pages;  // of each engine
    std::vector<Access> accesses;  // to the pages of the engine that is watched

    Chip(const std::string& folder, unsigned latency) {
        memories.reserve(PORTS + 1 + ENGINES), ports.reserve(PORTS + 1 + ENGINES);
        pages.reserve(ENGINES);
        for (unsigned n = 0; n < PORTS; n++) {
            char name[32];
            snprintf(name, sizeof name, "/port_%02u.bin", n);
            memories.emplace_back(folder + name);
        }
        memories.emplace_back(folder + "/data.bin", PROGRAM_BYTES);
        for (unsigned n = 0; n < ENGINES; n++)
            memories.emplace_back(uint64_t(PAGES) * CACHE_PAGE_BYTES);
        for (unsigned n = 0; n <= PORTS; n++)
            ports.emplace_back(clock, memories[n], n < PORTS ? PORT_BYTES : 32, latency);
        for (unsigned n = PORTS + 1; n <= PORTS + ENGINES; n++) {
            ports.emplace_back(clock, memories[n], KV_BYTES, latency);
            pages.emplace_back(clock, memories[n], KV_BYTES, latency);
        }
        unsigned n = 0;
#define CONNECT(name)                                                                              \
    connect(ports[n++], dut::name##_ar::payload(model), dut::name##_r::payload(model),             \
            dut::name##_ar::valid(model), dut::name##_ar::ready(model), dut::name##_r::valid(model), \
            dut::name##_r::ready(model), dut::name##_ar::addr, dut::name##_ar::len);
        WEIGHT_PORTS(CONNECT)
        CONNECT(data)
        KV_PORTS(CONNECT)
        unsigned engine = 0;
#define CONNECT_PAGES(name)                                                                      \
    connect(pages[engine++], dut::name##_aw::payload(model), dut::name##_w::payload(model),      \
            dut::name##_b::payload(model));                                                      \
    connect(pages[engine - 1], dut::name##_aw::valid(model), dut::name##_aw::ready(model),       \
            dut::name##_w::valid(model), dut::name##_w::ready(model),                            \
            dut::name##_b::valid(model), dut::name##_b::ready(model));                           \
    connect(pages[engine - 1], dut::name##_aw::addr, dut::name##_aw::len, dut::name##_w::data,   \
            dut::name##_w::strb, dut::name##_b::resp);
        KV_PORTS(CONNECT_PAGES)
        Chip::reset();
    }
    Chip(const Chip&) = delete;
    virtual ~Chip() { enter(); }
    // Verilator keeps a context for each thread: that of the chip which was made last.
    void enter() { Verilated::threadContextp(&context); }

    virtual void reset() {
        dut::rst(model) = 1;
        dut::host_aw::valid(model) = dut::host_w::valid(model) = dut::host_ar::valid(model) = 0;
        dut::host_b::ready(model) = dut::host_r::ready(model) = 1;
        for (ReadPort& port : ports) port.restart();
        for (WritePort& port : pages) port.restart();
        for (int n = 0; n < 3; n++) edge();
        dut::rst(model) = 0;
        clock.moved = clock.cycle;
    }
    // Whether the data memory has these bytes.
    bool has_room(uint64_t address, uint64_t size) const {
        const uint64_t all = memories[PORTS].size;
        return address <= all && size <= all - address;
    }
    void write_data(uint64_t address, const void* bytes, uint64_t size) {
        if (!has_room(address, size)) fail("no room for a program");
        memcpy(memories[PORTS].bytes + address, bytes, size);
    }
    // Reads of a word of a port's memory fail; of the last ports, writes.
    void set_error(uint32_t port, uint64_t word, bool is_set) {
        if (port >= ports.size() + pages.size()) fail("no such port");
        auto& errors = port < ports.size() ? ports[port].errors : pages[port - ports.size()].errors;
        if (is_set) errors.insert(word);
        else errors.erase(word);
    }
    // From now on `accesses` gets those of an engine's pages, or no more of any.
    void watch(uint32_t engine, bool is_on) {
        if (engine >= ENGINES) fail("no such engine");
        for (unsigned n = 0; n < ENGINES; n++)
            ports[PORTS + 1 + n].log = pages[n].log = is_on && n == engine ? &accesses : nullptr;
    }
    // Bytes of an engine's pages, which no cycle takes.
    uint8_t* bytes_of_pages(uint32_t engine, uint64_t address, uint64_t size) {
        if (engine >= ENGINES) fail("no such engine");
        const Mapped& memory = memories[PORTS + 1 + engine];
        if (address > memory.size || size > memory.size - address) fail("beyond the pages");
        return memory.bytes + address;
    }
    // A write of a register with nothing else in flight; false: it was refused.
    bool write(unsigned address, uint32_t word) {
        wait([&] { return dut::host_aw::ready(model) && dut::host_w::ready(model); });
        offer(address, word);
        step();
        dut::host_aw::valid(model) = dut::host_w::valid(model) = 0;
        wait([&] { return dut::host_b::valid(model); });
        return answered(get(dut::host_b::payload(model), dut::host_b::resp) == OKAY);
    }
    // A read with nothing else in flight; false: it was refused.
    bool read(unsigned address, uint32_t& word) {
        put(dut::host_ar::payload(model), dut::host_ar::addr, address);
        dut::host_ar::valid(model) = 1;
        wait([&] { return dut::host_ar::ready(model); });
        step();
        dut::host_ar::valid(model) = 0;
        wait([&] { return dut::host_r::valid(model); });
        word = uint32_t(get(dut::host_r::payload(model), dut::host_r::data));
        return answered(get(dut::host_r::payload(model), dut::host_r::resp) == OKAY);
    }
    bool is_silent() const { return clock.cycle - clock.moved > SILENCE; }
    // A cycle with the memories.
    void step() {
        for (ReadPort& port : ports) port.drive();
        for (WritePort& port : pages) port.drive();
        for (ReadPort& port : ports) port.step();
        for (WritePort& port : pages) port.step();
        edge();
    }

  protected:
    // Offers a write, which is taken in this cycle.
    void offer(unsigned address, uint32_t word) {
        put(dut::host_aw::payload(model), dut::host_aw::addr, address);
        put(dut::host_w::payload(model), dut::host_w::data, word);
        put(dut::host_w::payload(model), dut::host_w::strb, 0xF);
        dut::host_aw::valid(model) = dut::host_w::valid(model) = 1;
    }

  private:
    template <class Condition> void wait(Condition is_met) {
        for (const uint64_t start = clock.cycle; !is_met(); step())
            if (clock.cycle - start > SILENCE) fail("a register gives no answer");
    }
    bool answered(bool okay) {
        if (okay) clock.moved = clock.cycle;
        step();
        return okay;
    }
    void edge() {
        dut::clk(model) = 0, model.eval();
        dut::clk(model) = 1, model.eval();
        clock.cycle++;
    }
    template <class A, class W> void connect(WritePort& port, A& aw, W& w, CData& b) {
        port.aw = reinterpret_cast<uint32_t*>(&aw), port.w = reinterpret_cast<uint32_t*>(&w);
        port.b = &b;
    }
    void connect(WritePort& port, CData& aw_valid, CData& aw_ready, CData& w_valid, CData& w_ready,
                 CData& b_valid, CData& b_ready) {
        port.aw_valid = &aw_valid, port.aw_ready = &aw_ready;
        port.w_valid = &w_valid, port.w_ready = &w_ready;
        port.b_valid = &b_valid, port.b_ready = &b_ready;
    }
    void connect(WritePort& port, Field addr, Field len, Field data, Field strb, Field resp) {
        port.addr = addr, port.len = len, port.data = data, port.strb = strb, port.resp = resp;
    }
    template <class A, class R>
    void connect(ReadPort& port, A& ar, R& r, CData& ar_valid, CData& ar_ready, CData& r_valid,
                 CData& r_ready, Field addr, Field len) {
        port.ar = reinterpret_cast<uint32_t*>(&ar), port.r = reinterpret_cast<uint32_t*>(&r);
        port.ar_valid = &ar_valid, port.ar_ready = &ar_ready;
        port.r_valid = &r_valid, port.r_ready = &r_ready;
        port.addr = addr, port.len = len;
    }
};

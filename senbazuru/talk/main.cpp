// The host of a Verilated kllm_accelerator: its driver, its memories and the clock, in one loop.
//
// usage: program FOLDER LATENCY. FOLDER has data.bin and port_NN.bin of golden.llm.pack --all; they are
// mapped. The pages of K and V are in this process alone. Requests come on standard input, answers
// go to standard output; senbazuru/talk/driver.py has both sides' words. A driver of real hardware does
// the same with its registers and its memory (docs/host.md).
#include <algorithm>
#include <deque>
#include <fcntl.h>
#include <set>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "hdl_ports.h"

namespace {

constexpr uint64_t SILENCE = 200000;  // cycles without any transfer: a hang
constexpr unsigned PAGE_BYTES = 4096, COMMAND_WORDS = 16, UNITS = 6;
constexpr unsigned OKAY = 0, SLVERR = 2, DECERR = 3;
constexpr uint32_t FAILED = (1u << 11) - 1;  // status bits without output
constexpr uint64_t PROGRAM_BYTES = 1 << 24;  // room for programs behind the data

// ---------------------------------------------------------------- frames

void read_all(void* to, size_t bytes) {
    auto* at = static_cast<uint8_t*>(to);
    while (bytes) {
        const ssize_t got = read(0, at, bytes);
        if (got <= 0) std::_Exit(0);  // the other side has gone
        at += got, bytes -= size_t(got);
    }
}

template <class T> T take() {
    T value;
    read_all(&value, sizeof value);
    return value;
}

template <class T> std::vector<T> take_many(size_t count) {
    std::vector<T> values(count);
    read_all(values.data(), count * sizeof(T));
    return values;
}

class Answer {
    std::vector<uint8_t> bytes;

  public:
    explicit Answer(char kind) { put(kind); }
    template <class T> void put(T value) {
        const auto* from = reinterpret_cast<const uint8_t*>(&value);
        bytes.insert(bytes.end(), from, from + sizeof value);
    }
    void put_text(const std::string& text) { bytes.insert(bytes.end(), text.begin(), text.end()); }
    void send() {
        const auto size = uint32_t(bytes.size());
        fwrite(&size, sizeof size, 1, stdout);
        fwrite(bytes.data(), 1, size, stdout);
        fflush(stdout);
    }
};

[[noreturn]] void fail(const std::string& why) {
    Answer answer('X');
    answer.put_text(why);
    answer.send();
    std::_Exit(1);
}

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
        if (at == MAP_FAILED) fail("cannot map " + path);
        bytes = static_cast<uint8_t*>(at);
        close(file);
    }
    // Zeros, which take room when they are written.
    explicit Mapped(uint64_t size) : size(size) {
        void* at = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) fail("no room for the pages");
        bytes = static_cast<uint8_t*>(at);
    }
};

uint64_t cycle = 0, moved = 0;  // now; the last transfer

// Bits of a payload: ports of up to 64 bits are integers, wider ones arrays, both words of 32.
uint64_t bits_of(const uint32_t* words, Field field) {
    uint64_t value = 0;
    for (unsigned have = 0, at = field.at; have < field.bits;) {
        const unsigned some = std::min(32 - at % 32, field.bits - have);
        value |= ((words[at / 32] >> at % 32) & mask(some)) << have;
        have += some, at += some;
    }
    return value;
}

// The subordinate of one AXI4 read port: bursts in order, the first word after the latency.
class ReadPort {
    struct Burst {
        uint64_t due, address;
        unsigned left;
    };
    std::deque<Burst> bursts;
    bool offered = false;

  public:
    Mapped& memory;
    unsigned word_bytes, latency;
    uint32_t *ar, *r;
    CData *ar_valid, *ar_ready, *r_valid, *r_ready;
    Field addr, len;
    std::set<uint64_t> errors;  // word addresses
    uint64_t words = 0;         // read so far

    ReadPort(Mapped& memory, unsigned word_bytes, unsigned latency)
        : memory(memory), word_bytes(word_bytes), latency(latency) {}

    void restart() {
        bursts.clear();
        offered = false, *r_valid = 0, *ar_ready = 1;
    }
    // What happens at the next edge, from outputs that no input of this cycle changes.
    void step() {
        if (*r_ready && offered) {
            moved = cycle, words++, offered = false;
            Burst& burst = bursts.front();
            burst.address += word_bytes;
            if (!--burst.left) bursts.pop_front();
        }
    }
    void drive() {
        if (*ar_valid) {
            moved = cycle;
            const uint64_t address = bits_of(ar, addr);
            const unsigned beats = unsigned(bits_of(ar, len)) + 1;
            if (address / PAGE_BYTES != (address + beats * word_bytes - 1) / PAGE_BYTES)
                fail("a burst crosses 4 KiB");
            bursts.push_back({cycle + latency, address, beats});
        }
        offered = !bursts.empty() && bursts.front().due <= cycle;
        *r_valid = offered;
        if (offered) offer();
    }

  private:
    void offer() {
        const Burst& burst = bursts.front();
        unsigned resp = OKAY;
        if (burst.address + word_bytes > memory.size) resp = DECERR;
        if (!errors.empty() && errors.count(burst.address / word_bytes)) resp = SLVERR;
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
    Mapped& memory;
    unsigned word_bytes, latency;
    uint32_t *aw, *w;
    CData *b, *aw_valid, *aw_ready, *w_valid, *w_ready, *b_valid, *b_ready;
    Field addr, len, data, strb, resp;
    std::set<uint64_t> errors;  // word addresses
    uint64_t words = 0;         // written so far

    WritePort(Mapped& memory, unsigned word_bytes, unsigned latency)
        : memory(memory), word_bytes(word_bytes), latency(latency) {}

    void restart() {
        bursts.clear(), ended.clear();
        offered = false, *b_valid = 0;
        *aw_ready = *w_ready = 1;
    }
    // What happens at the next edge, from outputs that no input of this cycle changes.
    void step() {
        if (*b_ready && offered) moved = cycle, offered = false, ended.pop_front();
    }
    void drive() {
        if (*aw_valid) {
            moved = cycle;
            const unsigned beats = unsigned(bits_of(aw, len)) + 1;
            const uint64_t address = bits_of(aw, addr);
            if (address / PAGE_BYTES != (address + beats * word_bytes - 1) / PAGE_BYTES)
                fail("a burst crosses 4 KiB");
            bursts.push_back({address, beats, false});
        }
        // Words may come with their address, not before it.
        *w_ready = !bursts.empty();
        if (!bursts.empty() && *w_valid) take_word();
        offered = !ended.empty() && ended.front().due <= cycle;
        *b_valid = offered;
        if (offered) put(*b, resp, ended.front().failed ? SLVERR : OKAY);
    }

  private:
    void take_word() {
        moved = cycle, words++;
        Burst& burst = bursts.front();
        const bool inside = burst.address + word_bytes <= memory.size;
        for (unsigned n = 0; inside && n < word_bytes; n++)
            if (bits_of(w, {strb.at + n, 1}))
                memory.bytes[burst.address + n] = uint8_t(bits_of(w, {data.at + 8 * n, 8}));
        burst.failed |= !inside || errors.count(burst.address / word_bytes);
        burst.address += word_bytes;
        if (!--burst.left) ended.push_back({cycle + latency, burst.failed}), bursts.pop_front();
    }
};

// ---------------------------------------------------------------- the accelerator

struct Report {
    uint32_t word;
    uint64_t cycle;
};

// Words that the queue of commands has room for, as far as the host knows.
class Room {
    uint64_t written = 0, answered = 0, known = 0;  // words of COMMAND; words that have room

  public:
    // The queue is empty.
    void restart(unsigned depth) { written = answered = 0, known = depth; }
    bool is_left() const { return written < known; }
    void write() { written++; }
    void answer() { answered++; }
    uint64_t taken() const { return answered; }
    // LEVELS gave `levels`, when at least `taken` words were in.
    void learn(uint32_t levels, uint64_t taken) {
        known = std::max(known, taken + (levels & 0xFFFF));
    }
};

// Which register the host reads next, and how the reads on their way are answered.
class Polls {
    static constexpr unsigned EMPTY = 8;  // empty answers one after another: nothing comes any more
    static constexpr unsigned PAUSE = 16;  // reads between two of LEVELS: room comes that slowly
    struct Read {
        unsigned which;
        uint64_t taken;  // words of commands that were in when the read was sent
    };
    std::deque<Read> asked;
    unsigned empty = 0, turn = 0, pause = 0;
    bool in_a_row = false, asks_room = false;

  public:
    // Words read back come in rows: go on with them, and look for a status now and then.
    unsigned next(bool room_wanted, const Room& room) {
        unsigned which = LEVELS;
        if (!room_wanted || asks_room || pause) {
            pause -= pause != 0;
            const bool status = in_a_row ? turn % 16 == 0 : turn % 2 == 0;
            turn++;
            which = status ? STATUS : READBACK;
        }
        if (which == LEVELS) asks_room = true, pause = PAUSE;
        asked.push_back({which, room.taken()});
        return which;
    }
    // The register of the oldest read. complete: no status is to come.
    unsigned answered(uint32_t word, bool okay, bool complete, Room& room) {
        const Read read = asked.front();
        asked.pop_front();
        if (read.which == LEVELS) {
            asks_room = false, room.learn(word, read.taken);
            return LEVELS;
        }
        if (read.which == READBACK) in_a_row = okay;
        empty = okay || !complete ? 0 : empty + 1;
        return read.which;
    }
    // No read is wanted, and none is on its way.
    bool done() const { return is_over() && asked.empty(); }
    bool is_over() const { return empty >= EMPTY; }
};

class Accelerator {
    VerilatedContext context;
    Model model{&context};
    std::vector<Mapped> memories;  // the ports', the data memory, the pages of each engine
    uint16_t counted[UNITS] = {};  // commands of each unit since reset
    uint16_t began[UNITS] = {};    // the same at the beginning of this pass
    unsigned depth = 0;            // words of the queue of commands
    bool is_stopped = false;       // in mid-program: answers are on their way
    bool has_stepped = false;      // commands of a step are not counted

  public:
    std::vector<ReadPort> ports;  // as memories
    std::vector<WritePort> pages;  // of each engine
    std::vector<Report> reports;
    std::vector<uint32_t> readback;

    Accelerator(const std::string& folder, unsigned latency) {
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
            ports.emplace_back(memories[n], n < PORTS ? PORT_BYTES : 32, latency);
        for (unsigned n = PORTS + 1; n <= PORTS + ENGINES; n++) {
            ports.emplace_back(memories[n], KV_BYTES, latency);
            pages.emplace_back(memories[n], KV_BYTES, latency);
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
        reset();
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
    Mapped& data() { return memories[PORTS]; }

    void reset() {
        dut::rst(model) = 1;
        dut::host_aw::valid(model) = dut::host_w::valid(model) = dut::host_ar::valid(model) = 0;
        dut::host_b::ready(model) = dut::host_r::ready(model) = 1;
        for (ReadPort& port : ports) port.restart();
        for (WritePort& port : pages) port.restart();
        for (int n = 0; n < 3; n++) edge();
        dut::rst(model) = 0;
        std::fill(counted, counted + UNITS, 0);
        is_stopped = has_stepped = false;
        uint32_t levels = 0;
        read(LEVELS, levels);
        depth = levels & 0xFFFF;
        begin();
    }
    // A request to the cache; its answer. Nothing else is on its way.
    uint32_t ask(const std::vector<uint32_t>& words) {
        for (uint32_t word : words) set(REQUEST, word);
        moved = cycle;
        for (;;) {
            uint32_t word;
            if (read(ANSWER, word)) return word;
            if (cycle - moved > SILENCE) fail("a request to the cache has no answer");
        }
    }
    void set_batch(const std::vector<uint32_t>& words) {
        for (uint32_t word : words) set(BATCH, word);
    }
    // A step: the batch, the program, its result; then as many ids as there are. abort_at: the
    // cycle in which the host writes CONTROL. What the host writes are all its words.
    uint32_t step_of(const std::vector<uint32_t>& batch, uint32_t program, unsigned ids,
                     int64_t abort_at) {
        if (is_stopped) fail("a program was stopped: reset the accelerator first");
        has_stepped = true;
        readback.clear();
        const uint64_t start = cycle;
        set_batch(batch);
        set(RUN, program);
        moved = cycle;
        uint32_t result = 0, word = 0;
        bool aborted = abort_at < 0;
        while (!read(RESULT, result)) {
            if (!aborted && int64_t(cycle - start) >= abort_at) aborted = true, set(CONTROL, 1);
            if (cycle - moved > SILENCE) fail("a run has no result");
        }
        // What was on its way to the host when the run ended.
        for (unsigned empty = 0; readback.size() < ids && empty < 64;)
            if (read(READBACK, word)) readback.push_back(word);
            else empty++;
        return result;
    }
    // A pass begins: the waits of its programs count from here.
    void begin() { std::copy(counted, counted + UNITS, began); }
    std::vector<uint32_t> counted_from_reset(const std::vector<uint32_t>& words) const {
        auto moved_words = words;
        for (size_t first = 0; first < words.size(); first += COMMAND_WORDS)
            for (unsigned unit = 0; unit < UNITS; unit++) {
                uint32_t& word = moved_words[first + 1 + unit / 2];
                const unsigned shift = 16 * (unit % 2);
                const uint32_t wait = ((word >> shift) + began[unit]) & 0xFFFF;
                word = (word & ~(0xFFFFu << shift)) | wait << shift;
            }
        return moved_words;
    }
    // Sends the words; takes all statuses and words read back. abort_at: from that cycle of the
    // program on no word is sent, CONTROL is written, and what is in flight is taken.
    //
    // Words and reads are on their way one per cycle: as many words as the queue has room for. A
    // read of a queue that was empty is repeated later.
    bool run(const std::vector<uint32_t>& words, int64_t abort_at, int64_t stop_at) {
        if (is_stopped) fail("a program was stopped: reset the accelerator first");
        if (has_stepped) fail("a step has run: reset the accelerator first");
        reports.clear(), readback.clear();
        const size_t wanted = words.size() / COMMAND_WORDS;
        const uint64_t start = cycle;
        size_t sent = 0;
        bool aborting = false, ends = false, aborted = false;  // ends: CONTROL is written
        std::deque<unsigned> writes;  // registers, not answered yet
        Room room;
        room.restart(depth);
        Polls polls;
        moved = cycle;
        for (;;) {
            const int64_t now = int64_t(cycle - start);
            if (stop_at >= 0 && now >= stop_at) {
                is_stopped = true;
                return false;
            }
            // Answers, which depend on no input of this cycle.
            if (dut::host_b::valid(model)) {
                const bool okay = get(dut::host_b::payload(model), dut::host_b::resp) == OKAY;
                if (!okay) fail("a word was refused, though LEVELS gave room for it");
                if (writes.front() == COMMAND) room.answer(), moved = cycle;
                else aborted = true;
                writes.pop_front();
            }
            if (dut::host_r::valid(model)) {
                const auto& payload = dut::host_r::payload(model);
                const auto word = uint32_t(get(payload, dut::host_r::data));
                const bool okay = get(payload, dut::host_r::resp) == OKAY;
                const bool complete = reports.size() == wanted || (aborted && dut::idle(model));
                const unsigned which = polls.answered(word, okay, complete, room);
                if (which == READBACK && okay) readback.push_back(word);
                if (which == STATUS && okay) take_report(word, cycle - start);
                if (which != LEVELS && okay) moved = cycle;
            }
            if (polls.done() && writes.empty()) break;
            // What the host offers.
            aborting = abort_at >= 0 && now >= abort_at;
            dut::host_aw::valid(model) = dut::host_w::valid(model) = 0;
            const bool sending = !aborting && sent < words.size();
            if (dut::host_aw::ready(model) && dut::host_w::ready(model)) {
                if (aborting && !ends) {
                    ends = true, writes.push_back(CONTROL), write(CONTROL, 1);
                } else if (sending && room.is_left()) {
                    room.write(), writes.push_back(COMMAND), write(COMMAND, words[sent++]);
                }
            }
            dut::host_ar::valid(model) = 0;
            if (!polls.is_over() && dut::host_ar::ready(model)) {
                put(dut::host_ar::payload(model), dut::host_ar::addr,
                    polls.next(sending && !room.is_left(), room));
                dut::host_ar::valid(model) = 1;
            }
            step();
            if (cycle - moved > SILENCE)
                fail("no transfer for " + std::to_string(SILENCE) + " cycles: " +
                     std::to_string(sent) + " of " + std::to_string(words.size()) + " words sent, " +
                     std::to_string(reports.size()) + " of " + std::to_string(wanted) + " statuses");
        }
        // Let the memories' last words end.
        dut::host_aw::valid(model) = dut::host_w::valid(model) = dut::host_ar::valid(model) = 0;
        for (int n = 0; n < 4; n++) step();
        return true;
    }

  private:
    // A command that has a status has completed.
    void take_report(uint32_t word, uint64_t at) {
        reports.push_back({word, at});
        counted[word >> 13 & 7]++;
    }
    // Offers a write, which is taken in this cycle.
    void write(unsigned address, uint32_t word) {
        put(dut::host_aw::payload(model), dut::host_aw::addr, address);
        put(dut::host_w::payload(model), dut::host_w::data, word);
        put(dut::host_w::payload(model), dut::host_w::strb, 0xF);
        dut::host_aw::valid(model) = dut::host_w::valid(model) = 1;
    }
    // A write with nothing else on its way.
    void set(unsigned address, uint32_t word) {
        while (!dut::host_aw::ready(model) || !dut::host_w::ready(model)) step();
        write(address, word);
        step();
        dut::host_aw::valid(model) = dut::host_w::valid(model) = 0;
        while (!dut::host_b::valid(model)) step();
        const bool okay = get(dut::host_b::payload(model), dut::host_b::resp) == OKAY;
        step();
        if (!okay) fail("a register refused a word");
    }
    // A read with nothing else on its way; false: it was refused.
    bool read(unsigned address, uint32_t& word) {
        put(dut::host_ar::payload(model), dut::host_ar::addr, address);
        dut::host_ar::valid(model) = 1;
        while (!dut::host_ar::ready(model)) step();
        step();
        dut::host_ar::valid(model) = 0;
        while (!dut::host_r::valid(model)) step();
        word = uint32_t(get(dut::host_r::payload(model), dut::host_r::data));
        const bool okay = get(dut::host_r::payload(model), dut::host_r::resp) == OKAY;
        step();
        return okay;
    }
    // A cycle with the memories.
    void step() {
        for (ReadPort& port : ports) port.drive();
        for (WritePort& port : pages) port.drive();
        for (ReadPort& port : ports) port.step();
        for (WritePort& port : pages) port.step();
        edge();
    }
    void edge() {
        dut::clk(model) = 0, model.eval();
        dut::clk(model) = 1, model.eval();
        cycle++;
    }
};

// ---------------------------------------------------------------- requests

class Driver {
    Accelerator accelerator;
    bool failed = false;  // the programs of a pass are left out until the next 'G'

  public:
    Driver(const std::string& folder, unsigned latency) : accelerator(folder, latency) {}

    void serve() {
        for (;;) switch (take<char>()) {
            case 'Q': ask(); break;
            case 'B': set_batch(); break;
            case 'G': failed = false, accelerator.begin(); break;
            case 'E': set_error(); break;
            case 'R': accelerator.reset(), Answer('r').send(); break;
            case 'P': run(); break;
            case 'W': write_rows(); break;
            case 'N': step(); break;
            default: fail("unknown request");
            }
    }

  private:
    void ask() {
        const auto words = take_many<uint32_t>(REQUEST_WORDS);
        Answer answer('q');
        answer.put(accelerator.ask(words));
        answer.send();
    }
    void set_batch() {
        const auto count = take<uint32_t>();
        accelerator.set_batch(take_many<uint32_t>(count));
    }
    void write_rows() {
        const auto row = take<uint32_t>(), rows = take<uint32_t>();
        const auto bytes = take_many<uint8_t>(32 * rows);
        Mapped& data = accelerator.data();
        if ((uint64_t(row) + rows) * 32 > data.size) fail("no room for a program");
        memcpy(data.bytes + uint64_t(row) * 32, bytes.data(), bytes.size());
    }
    void step() {
        const auto program = take<uint32_t>(), ids = take<uint32_t>();
        const auto abort_at = take<int64_t>();
        const auto count = take<uint32_t>();
        const auto batch = take_many<uint32_t>(count);
        const uint64_t start = cycle;
        Answer answer('n');
        const uint32_t result = accelerator.step_of(batch, program, ids, abort_at);
        answer.put<uint64_t>(cycle - start);
        answer.put(uint32_t(batch.size() + 1));
        answer.put(result);
        for (uint32_t word : accelerator.readback) answer.put(word);
        answer.send();
    }
    void set_error() {
        const auto port = take<uint32_t>();
        const auto word = take<uint64_t>();
        const auto is_set = take<uint8_t>();
        const size_t reads = accelerator.ports.size();
        auto& errors = port < reads ? accelerator.ports[port].errors
                                    : accelerator.pages.at(port - reads).errors;
        if (is_set) errors.insert(word);
        else errors.erase(word);
    }
    void run() {
        const auto abort_at = take<int64_t>(), stop_at = take<int64_t>();
        const auto count = take<uint32_t>();
        const auto words = take_many<uint32_t>(count);
        if (failed) return;
        const uint64_t start = cycle;
        std::vector<uint64_t> before;
        for (ReadPort& port : accelerator.ports) before.push_back(port.words);
        const bool ended =
            accelerator.run(accelerator.counted_from_reset(words), abort_at, stop_at);
        for (const Report& report : accelerator.reports) failed |= (report.word & FAILED) != 0;
        failed |= !ended || abort_at >= 0;
        Answer answer('p');
        answer.put<uint8_t>(failed);
        answer.put<uint64_t>(cycle - start);
        answer.put(uint32_t(accelerator.reports.size()));
        answer.put(uint32_t(accelerator.readback.size()));
        for (const Report& report : accelerator.reports) answer.put(report.word);
        for (const Report& report : accelerator.reports) answer.put(uint32_t(report.cycle));
        for (uint32_t word : accelerator.readback) answer.put(word);
        for (unsigned n = 0; n < accelerator.ports.size(); n++)
            answer.put(accelerator.ports[n].words - before[n]);
        answer.send();
    }
};

}  // namespace

int main(int count, char** arguments) {
    if (count != 3) fail("usage: program FOLDER LATENCY");
    Driver(arguments[1], unsigned(std::strtoul(arguments[2], nullptr, 10))).serve();
}

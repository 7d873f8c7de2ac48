// Random requests against the MMU's ports, a memory that errs, and a log of all that was seen.
//
// usage: program REQUESTS SEED. The log goes to standard output in frames (u32 length, events);
// senbazuru/runs/soak/check.py replays it. What can be seen in one cycle or one burst is checked here:
// words that do not hold while stalled, bursts against AXI's rules, addresses outside the cache.
#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "hdl_ports.h"

namespace {

constexpr unsigned SLOTS = 2 * HEADS + 1, VECTORS = LAYERS * 2;
constexpr uint64_t MEMORY_BYTES = uint64_t(PAGES) * PAGE_BYTES;
constexpr unsigned QUIET_LIMIT = 20000;  // cycles without any transfer: a deadlock
constexpr unsigned TABLE_BYTES = 1 << 16;
constexpr unsigned NONE = 255;

enum Op { OPEN, APPEND, READ, TRIM, FREE, THRESHOLDS, FORK };
constexpr unsigned OK = 0, OUT_OF_PAGES = 11;  // statuses

uint64_t cycle = 0;

// ---------------------------------------------------------------- log

class Log {
    std::vector<uint8_t> frame;

  public:
    template <class T> void word(T value) {
        const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
        frame.insert(frame.end(), bytes, bytes + sizeof value);
    }
    void bytes(const void* data, std::size_t n) {
        const auto* from = static_cast<const uint8_t*>(data);
        frame.insert(frame.end(), from, from + n);
    }
    void event(char type) {
        if (frame.size() > (1 << 18)) flush();
        word(type);
    }
    void flush() {
        const auto n = static_cast<uint32_t>(frame.size());
        fwrite(&n, sizeof n, 1, stdout);
        fwrite(frame.data(), 1, n, stdout);
        fflush(stdout);
        frame.clear();
    }
} out;

[[noreturn]] void fail(const std::string& why) {
    out.event('X');
    out.word<uint64_t>(cycle);
    out.word<uint32_t>(why.size());
    out.bytes(why.data(), why.size());
    out.flush();
    std::_Exit(1);
}

// ---------------------------------------------------------------- contents of records

struct Contents {
    uint64_t seed;
    std::vector<uint8_t> table;

    explicit Contents(uint64_t seed) : seed(splitmix(seed)), table(TABLE_BYTES + PAGE_BYTES) {
        for (unsigned i = 0; i < TABLE_BYTES; i++)
            table[i] = static_cast<uint8_t>(splitmix(this->seed + i / 8) >> (8 * (i % 8)));
        for (unsigned i = TABLE_BYTES; i < table.size(); i++) table[i] = table[i - TABLE_BYTES];
    }
    // Record `slot` of APPEND number `number`: no two appends have the same bytes.
    std::pair<const uint8_t*, unsigned> record(uint32_t number, unsigned slot) const {
        const uint64_t h = splitmix(seed ^ splitmix(uint64_t(number) * 512 + slot));
        unsigned size = SCALE_BYTES;
        if (slot < 2 * HEADS) {
            size = DENSE_BYTES;
            if (slot % 2)
                size = SPARSE_MIN + unsigned((h >> 32) % (SPARSE_MAX - SPARSE_MIN + 1));
        }
        return {&table[h % TABLE_BYTES], size};
    }
};

// ---------------------------------------------------------------- phases

// How busy each party is; drawn anew every few hundred or thousand cycles.
struct Phase {
    double stall[8];  // of status, info, dense, sparse, scale, aw, w, ar
    double idle[5];   // of request, record, w, b, r
    unsigned latency;
    double write_error, read_error;
    unsigned outstanding;
    unsigned pressure;  // 0: frees often; 2: hardly ever
    unsigned hot;       // the only vector that is appended to and read, if below VECTORS
    uint64_t until;

    void draw(Random& random) {
        static constexpr double stalls[] = {0, 0, 0.1, 0.5, 0.9};
        for (double& p : stall) p = stalls[random.below(5)];
        for (double& p : idle) p = stalls[random.below(5)];
        static constexpr double pauses[] = {0, 0, 0.5, 0.9};
        idle[0] = pauses[random.below(4)];
        static constexpr unsigned latencies[] = {0, 2, 10, 60};
        latency = latencies[random.below(4)];
        static constexpr double errors[] = {0, 0, 0.003, 0.05};
        write_error = errors[random.below(4)];
        read_error = errors[random.below(4)] / 4;
        static constexpr unsigned limits[] = {1, 3, 12, 40};
        outstanding = limits[random.below(4)];
        pressure = random.below(3);
        hot = random.below(4 * VECTORS);
        if (hot < VECTORS) pressure = 2;
        until = cycle + random.within(300, 4000);
    }
} phase;

enum { S_STATUS, S_INFO, S_DENSE, S_SPARSE, S_SCALE, S_AW, S_W, S_AR };
enum { I_REQUEST, I_RECORD, I_W, I_B, I_R };

// ---------------------------------------------------------------- the client

struct Request {
    unsigned op, tag, sequence, layer, kv, head, heads, token;
    uint32_t number;  // of an APPEND
    unsigned bad;     // APPEND: first slot with a wrong size; NONE
};

struct Sequence {
    bool open = false;     // as far as statuses tell
    bool is_child = false;
    unsigned busy = 0;     // requests on their way
    unsigned tokens[VECTORS] = {}, appending[VECTORS] = {};
};

struct Word {
    uint8_t data[DATA_BYTES];
    bool last;
};

class Client {
    Random& random;
    const Contents& contents;
    Sequence sequences[256];
    bool tag_used[256] = {};
    Request by_tag[256];
    uint32_t appends = 0;
    unsigned opening = 0;  // OPENs and FORKs on their way
    unsigned parent = NONE;  // is brought to equal lengths, then forked
    bool starved = false;  // an APPEND found no page: somebody had better go

    unsigned vector_of(const Request& r) const { return r.layer % LAYERS * 2 + r.kv; }

    bool opens(const Request& r) const { return r.op == OPEN || (FORKS && r.op == FORK); }

    unsigned pick_parent() {
        unsigned chosen = pick_open();
        for (unsigned tries = 0; tries < 4 && sequences[chosen].is_child; tries++)
            chosen = pick_open();
        return chosen;
    }

    // A FORK of `parent`, or an APPEND to its shortest vector: FORK wants all of one length.
    void prepare_fork(Request& r) {
        const Sequence& s = sequences[parent];
        auto length = [&](unsigned v) { return s.tokens[v] + s.appending[v]; };
        unsigned shortest = 0, longest = 0;
        for (unsigned v = 1; v < VECTORS; v++) {
            if (length(v) < length(shortest)) shortest = v;
            if (length(v) > length(longest)) longest = v;
        }
        r.sequence = parent;
        const bool gives_up = random.chance(0.02);
        if (gives_up || !s.open || s.is_child || length(shortest) == length(longest)) {
            r.op = FORK, r.token = length(random.chance(0.5) ? shortest : longest);
            parent = NONE;
        } else {
            r.op = APPEND, r.layer = shortest / 2, r.kv = shortest % 2, r.token = length(shortest);
        }
    }

    unsigned pick_open() {
        unsigned found = 0, chosen = random.below(SEQUENCES);
        if (phase.hot < VECTORS && sequences[0].open && random.chance(0.8)) return 0;
        for (unsigned s = 0; s < SEQUENCES; s++)
            if (sequences[s].open && random.below(++found) == 0) chosen = s;
        return chosen;
    }

  public:
    unsigned outstanding = 0, open_count = 0;
    std::deque<unsigned> records;  // sizes
    std::deque<Word> words;

    Client(Random& random, const Contents& contents) : random(random), contents(contents) {}

    bool can_send() const { return outstanding < phase.outstanding && records.size() < 64; }

    Request draw() {
        Request r{};
        r.op = random.below(16), r.sequence = random.below(256), r.layer = random.below(256);
        r.kv = random.below(2), r.head = random.below(256), r.heads = random.below(256);
        r.token = random.below(1 << 21);
        do r.tag = random.below(256); while (tag_used[r.tag]);

        const unsigned dice = random.below(1000);
        const unsigned often = FORKS ? 8 : 30;  // FORKs want vacant sequences too
        const unsigned opens = open_count < SEQUENCES ? (open_count < 2 ? 200 : often) : 4;
        unsigned frees = phase.pressure == 0 ? 14 : phase.pressure == 1 ? 5 : 1;
        if (starved && phase.pressure < 2) frees = 60;
        if (FORKS && parent == NONE && random.chance(open_count < SEQUENCES ? 0.03 : 0.003))
            parent = pick_parent();
        if (FORKS && parent != NONE && random.chance(0.5)) {
            prepare_fork(r);
        } else if (dice < opens) {
            r.op = OPEN;
        } else if (dice < opens + frees) {
            r.op = FREE, r.sequence = pick_open();
        } else if (dice < opens + frees + 25) {
            r.op = TRIM, r.sequence = pick_open();
            const Sequence& s = sequences[r.sequence];
            unsigned least = ~0u;
            for (unsigned v = 0; v < VECTORS; v++) least = std::min(least, s.tokens[v]);
            r.token = random.below(least + 1);
            if (random.chance(0.2)) r.token = least;
        } else if (dice < 1000 - 430) {
            r.op = APPEND, r.sequence = pick_open();
            const Sequence& s = sequences[r.sequence];
            unsigned v = random.below(VECTORS);
            for (unsigned other = 0; other < VECTORS; other++)
                if (random.chance(0.8) && s.tokens[other] + s.appending[other] <
                                              s.tokens[v] + s.appending[v])
                    v = other;
            if (phase.hot < VECTORS) v = phase.hot;
            r.layer = v / 2, r.kv = v % 2, r.token = s.tokens[v] + s.appending[v];
        } else {
            r.op = READ, r.sequence = pick_open();
            r.layer = random.below(LAYERS);
            if (phase.hot < VECTORS) r.layer = phase.hot / 2, r.kv = phase.hot % 2;
            const Sequence& s = sequences[r.sequence];
            r.token = s.tokens[vector_of(r)];
            if (random.chance(0.3)) r.token = random.below(r.token + 1);
            r.heads = random.within(1, HEADS), r.head = random.below(HEADS - r.heads + 1);
        }
        if (random.chance(0.02)) spoil(r);
        if (r.op > FREE && !(FORKS && r.op == FORK)) r.op |= 8;  // no op of the MMU
        // What an OPEN on its way opens is not known: nobody names it before.
        if (r.op != OPEN && opening && r.sequence < SEQUENCES && !sequences[r.sequence].open)
            r.sequence = SEQUENCES;
        r.bad = NONE;
        if (r.op == APPEND && random.chance(0.01)) r.bad = random.below(SLOTS);
        return r;
    }

    void spoil(Request& r) {
        switch (random.below(7)) {
        case 0: r.op = random.below(16); break;
        case 1: r.sequence = random.below(256); break;
        case 2: r.sequence = random.below(SEQUENCES); break;
        case 3: r.layer = random.below(random.chance(0.5) ? 256 : LAYERS + 2); break;
        case 4: r.head = random.below(HEADS + 2); break;
        case 5: r.heads = random.below(HEADS + 2); break;
        default: r.token += random.within(0, 4) - 2, r.token &= (1 << 21) - 1;
        }
    }

    // `request` is about to be offered: what it brings with it.
    void offered(Request& r) {
        tag_used[r.tag] = true, outstanding++;
        if (r.op == APPEND) {
            r.number = appends++;
            const bool to_the_end = random.chance(0.3);  // all records behind a bad one are empty
            for (unsigned slot = 0; slot < SLOTS; slot++) {
                auto [bytes, size] = contents.record(r.number, slot);
                if (slot == r.bad && !to_the_end) {
                    const bool is_sparse = slot % 2;
                    switch (random.below(3)) {
                    case 0: size = 0; break;
                    case 1: size = SPARSE_MAX + 1 + SCALE_BYTES + random.below(100); break;
                    default: size = is_sparse ? SPARSE_MIN - 1 : size + 1;
                    }
                }
                if (r.bad != NONE && slot >= r.bad && to_the_end) size = 0;
                records.push_back(size);
                for (unsigned at = 0; at < size; at += DATA_BYTES) {
                    Word word;
                    for (uint8_t& byte : word.data) byte = static_cast<uint8_t>(random.next());
                    if (slot != r.bad) memcpy(word.data, bytes + at, std::min(DATA_BYTES, size - at));
                    word.last = at + DATA_BYTES >= size;
                    words.push_back(word);
                }
            }
        }
        opening += opens(r);
        by_tag[r.tag] = r;
        if (r.sequence < SEQUENCES) {
            Sequence& s = sequences[r.sequence];
            s.busy++;
            if (r.op == APPEND) s.appending[vector_of(r)]++;
            if (r.op == FREE && s.open) s.open = false, open_count--, starved = false;
        }
    }

    void answered(unsigned tag, unsigned status, unsigned sequence) {
        if (!tag_used[tag]) fail("a status for a tag that is not in use");
        tag_used[tag] = false, outstanding--;
        const Request& r = by_tag[tag];
        opening -= opens(r);
        if (r.sequence < SEQUENCES) {
            Sequence& s = sequences[r.sequence];
            s.busy--;
            if (r.op == APPEND) {
                s.appending[vector_of(r)]--;
                if (status == OK) s.tokens[vector_of(r)]++;
                if (status == OUT_OF_PAGES) starved = true;
            }
        }
        if (opens(r) && status == OK && sequence < SEQUENCES) {
            Sequence& s = sequences[sequence];
            const unsigned busy = s.busy;
            s = Sequence{};
            s.open = true, s.busy = busy, open_count++;
            s.is_child = r.op == FORK;
            if (s.is_child) std::fill_n(s.tokens, VECTORS, r.token);
        }
    }

    // The last requests of a run: all that is open goes.
    bool last_wishes(Request& r) {
        for (unsigned s = 0; s < SEQUENCES; s++)
            if (sequences[s].open) {
                r = draw();
                r.op = FREE, r.sequence = s;
                return true;
            }
        return false;
    }
};

// ---------------------------------------------------------------- the memory

struct Burst {
    uint64_t address;
    unsigned beats, done;
    uint64_t ready_at;
    std::vector<uint8_t> resp;
};

struct Beat {
    uint8_t data[DATA_BYTES];
    uint64_t strobes[(DATA_BYTES + 63) / 64];
    bool last;
};

struct Response {
    uint64_t ready_at;
    unsigned resp;
    uint64_t address;  // in the memory
    std::vector<uint8_t> bytes;
};

class Memory {
    Random& random;
    uint64_t base;
    std::vector<uint8_t> bytes;
    std::deque<Burst> aws, reads;
    std::deque<Beat> beats;
    uint64_t last_b = 0, last_r = 0;

    unsigned draw_error(double p, uint64_t& count) {
        if (p == 0 || !random.chance(p)) return 0;
        count++;
        return 2 + random.below(2);
    }

    void check(uint64_t address, unsigned beats, unsigned size, unsigned burst, const char* what) {
        const uint64_t first = address & ~uint64_t(DATA_BYTES - 1);
        const uint64_t end = first + uint64_t(beats) * DATA_BYTES;
        if (burst != 1 || (1u << size) != DATA_BYTES) fail(std::string(what) + ": burst or size");
        if (beats > BURST_BEATS) fail(std::string(what) + ": burst too long");
        if (first / 4096 != (end - 1) / 4096) fail(std::string(what) + ": burst crosses 4 KiB");
        if (address < base || end > base + MEMORY_BYTES)
            fail(std::string(what) + ": address outside the cache");
    }

  public:
    std::deque<Response> responses;
    uint64_t write_errors = 0, read_errors = 0, write_bursts = 0, read_bursts = 0;

    Memory(Random& random, uint64_t base) : random(random), base(base), bytes(MEMORY_BYTES) {
        for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.next());
    }

    bool aw_room() const { return aws.size() < 16; }
    bool w_room() const { return beats.size() < 64; }
    bool ar_room() const { return reads.size() < 16; }
    bool empty() const {
        return aws.empty() && beats.empty() && reads.empty() && responses.empty();
    }

    void aw(uint64_t address, unsigned beats, unsigned size, unsigned burst) {
        check(address, beats, size, burst, "AW");
        aws.push_back({address, beats, 0, 0, {}});
        pair();
    }
    void w(const Beat& beat) {
        beats.push_back(beat);
        pair();
    }
    // A burst whose beats are all there is logged; its bytes arrive with its response.
    void pair() {
        while (!aws.empty() && beats.size() >= aws.front().beats) {
            const Burst burst = aws.front();
            aws.pop_front();
            Response response{};
            const uint64_t first = burst.address & ~uint64_t(DATA_BYTES - 1);
            bool begun = false, ended = false;
            for (unsigned k = 0; k < burst.beats; k++) {
                const Beat beat = beats.front();
                beats.pop_front();
                if (beat.last != (k + 1 == burst.beats)) fail("WLAST at the wrong beat");
                for (unsigned lane = 0; lane < DATA_BYTES; lane++) {
                    const uint64_t at = first + uint64_t(k) * DATA_BYTES + lane;
                    if (!(beat.strobes[lane / 64] >> lane % 64 & 1)) {
                        ended = begun;
                        continue;
                    }
                    if (ended) fail("strobes with a gap");
                    if (at < burst.address) fail("a strobe below AWADDR");
                    if (!begun) response.address = at - base, begun = true;
                    response.bytes.push_back(beat.data[lane]);
                }
            }
            if (!begun) fail("a burst without a byte");
            response.resp = draw_error(phase.write_error, write_errors);
            last_b = response.ready_at = std::max(last_b, cycle + random.below(phase.latency + 1));
            write_bursts++;
            out.event('W');
            out.word<uint32_t>(response.address);
            out.word<uint16_t>(response.bytes.size());
            out.word<uint8_t>(response.resp);
            out.bytes(response.bytes.data(), response.bytes.size());
            responses.push_back(std::move(response));
        }
    }
    bool b_due() const { return !responses.empty() && responses.front().ready_at <= cycle; }
    unsigned b_offer() {
        Response& response = responses.front();
        std::copy(response.bytes.begin(), response.bytes.end(), &bytes[response.address]);
        return response.resp;
    }
    void b_taken() { responses.pop_front(); }

    void ar(uint64_t address, unsigned beats, unsigned size, unsigned burst) {
        check(address, beats, size, burst, "AR");
        if (address % DATA_BYTES) fail("AR not aligned");
        last_r = std::max(last_r, cycle + random.below(phase.latency + 1));
        Burst read{address - base, beats, 0, last_r, std::vector<uint8_t>(beats)};
        for (uint8_t& resp : read.resp) resp = draw_error(phase.read_error, read_errors);
        read_bursts++;
        out.event('A');
        out.word<uint32_t>(read.address);
        out.word<uint16_t>(beats);
        out.bytes(read.resp.data(), beats);
        reads.push_back(std::move(read));
    }
    bool r_due() const { return !reads.empty() && reads.front().ready_at <= cycle; }
    const uint8_t* r_data() const {
        return &bytes[reads.front().address + uint64_t(reads.front().done) * DATA_BYTES];
    }
    unsigned r_resp() const { return reads.front().resp[reads.front().done]; }
    bool r_last() const { return reads.front().done + 1 == reads.front().beats; }
    void r_taken() {
        if (++reads.front().done == reads.front().beats) reads.pop_front();
    }
};

// ---------------------------------------------------------------- what comes out

// One of dense, sparse and scale: words are gathered to transfers.
struct Transfer {
    unsigned kind, first = 0, end = 0;
    uint32_t words = 0, since_slave = 0, since_decode = 0;  // words before the first such error
    std::vector<uint8_t> bytes;

    explicit Transfer(unsigned kind) : kind(kind) {}

    void word(const uint8_t* data, unsigned from, unsigned to, unsigned error, bool is_last) {
        static const char* names[] = {"dense", "sparse", "scale"};
        const std::string name = names[kind];
        if (from >= to || to > DATA_BYTES) fail(name + ": a word without bytes");
        if (words && from) fail(name + ": first is not 0 behind the first word");
        if (!is_last && to != DATA_BYTES) fail(name + ": end within a transfer");
        if (error == 1) fail(name + ": error is 1");
        if (!words) first = from, since_slave = since_decode = ~0u;
        if (error >= 2 && since_slave == ~0u) since_slave = words;
        if (error == 3 && since_decode == ~0u) since_decode = words;
        if (error < 2 && since_slave != ~0u) fail(name + ": an error is forgotten");
        if (error < 3 && since_decode != ~0u) fail(name + ": DECERR is forgotten");
        bytes.insert(bytes.end(), data + from, data + to);
        words++;
        if (!is_last) return;
        out.event('T');
        out.word<uint8_t>(kind);
        out.word<uint8_t>(first);
        out.word<uint32_t>(words);
        out.word<uint32_t>(since_slave);
        out.word<uint32_t>(since_decode);
        out.word<uint32_t>(bytes.size());
        out.bytes(bytes.data(), bytes.size());
        words = 0;
        bytes.clear();
    }
};

// An output that was stalled must be there again, unchanged.
template <class T> struct Held {
    T payload;
    bool waiting = false;

    void look(bool valid, bool ready, const T& now, const char* name) {
        if (waiting && (!valid || memcmp(&payload, &now, sizeof now)))
            fail(std::string(name) + ": an offered word changed or went away");
        waiting = valid && !ready;
        if (waiting) memcpy(&payload, &now, sizeof now);
    }
};

template <class T> void junk(T& port, Field whole, Random& random) {
    for (unsigned at = 0; at < whole.bits; at += 32)
        put(port, {whole.at + at, std::min(32u, whole.bits - at)}, random.next());
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) return fprintf(stderr, "usage: %s REQUESTS SEED\n", argv[0]), 2;
    const uint64_t requests = strtoull(argv[1], nullptr, 10);
    const uint64_t seed = strtoull(argv[2], nullptr, 10);

    VerilatedContext context;
    context.randReset(2);  // every register starts at a random value
    context.randSeed(static_cast<int>(splitmix(seed) % 0x7FFFFFFF) + 1);
    Model model{&context};
    Random random(seed);
    const Contents contents(seed);
    // Anywhere in the address space.
    const uint64_t base = (random.next() & mask(ADDRESS_BITS - 1)) / MEMORY_BYTES * MEMORY_BYTES;
    Memory memory(random, base);
    Client client(random, contents);
    Transfer transfers[3] = {Transfer(0), Transfer(1), Transfer(2)};
    Held<std::decay_t<decltype(dut::status::payload(model))>> held_status;
    Held<std::decay_t<decltype(dut::info::payload(model))>> held_info;
    Held<std::decay_t<decltype(dut::dense::payload(model))>> held_words[3];
    Held<std::decay_t<decltype(dut::axi_aw::payload(model))>> held_aw;
    Held<std::decay_t<decltype(dut::axi_w::payload(model))>> held_w;
    Held<std::decay_t<decltype(dut::axi_ar::payload(model))>> held_ar;

    uint64_t sent = 0, quiet = 0, drains = 0, next_drain = 500;
    bool draining = false, request_held = false;
    Request request{};
    unsigned after_end = 0;

    out.event('B');
    out.word<uint64_t>(requests);
    out.word<uint64_t>(seed);
    dut::base(model) = base;
    dut::request::valid(model) = dut::record::valid(model) = dut::w::valid(model) = 0;
    dut::axi_b::valid(model) = dut::axi_r::valid(model) = 0;
    phase.draw(random);

    model.rst = 1;
    const unsigned resets = random.within(1, 4);
    for (;; cycle++) {
        model.rst = cycle < resets;
        if (cycle >= phase.until) phase.draw(random);

        // Inputs for this cycle. What is offered stays until it is taken.
        auto& d = model;
        if (cycle >= resets) {
            if (!request_held && !draining && sent < requests && client.can_send() &&
                !random.chance(phase.idle[I_REQUEST])) {
                request = client.draw();
                request_held = true;
            }
            if (!request_held && sent >= requests && client.outstanding == 0 && memory.empty()) {
                request_held = client.last_wishes(request);
            }
            if (request_held && !dut::request::valid(d)) {
                client.offered(request);
                dut::request::valid(d) = 1;
                auto& p = dut::request::payload(d);
                put(p, dut::request::op, request.op);
                put(p, dut::request::tag, request.tag);
                put(p, dut::request::sequence, request.sequence);
                put(p, dut::request::layer, request.layer);
                put(p, dut::request::kv, request.kv);
                put(p, dut::request::head, request.head);
                put(p, dut::request::heads, request.heads);
                put(p, dut::request::token, request.token);
            }
            if (!client.records.empty() && !dut::record::valid(d) &&
                !random.chance(phase.idle[I_RECORD])) {
                dut::record::valid(d) = 1;
                put(dut::record::payload(d), dut::record::bytes, client.records.front());
            }
            if (!client.words.empty() && !dut::w::valid(d) && !random.chance(phase.idle[I_W])) {
                dut::w::valid(d) = 1;
                put_bytes(dut::w::payload(d), dut::w::data, client.words.front().data);
                put(dut::w::payload(d), dut::w::last, client.words.front().last);
            }
            if (memory.b_due() && !dut::axi_b::valid(d) && !random.chance(phase.idle[I_B])) {
                dut::axi_b::valid(d) = 1;
                put(dut::axi_b::payload(d), dut::axi_b::id, 0);
                put(dut::axi_b::payload(d), dut::axi_b::resp, memory.b_offer());
            }
            if (memory.r_due() && !dut::axi_r::valid(d) && !random.chance(phase.idle[I_R])) {
                auto& p = dut::axi_r::payload(d);
                dut::axi_r::valid(d) = 1;
                put_bytes(p, dut::axi_r::data, memory.r_data());
                put(p, dut::axi_r::id, 0);
                put(p, dut::axi_r::resp, memory.r_resp());
                put(p, dut::axi_r::last, memory.r_last());
            }
        }
        dut::status::ready(d) = !random.chance(phase.stall[S_STATUS]);
        dut::info::ready(d) = !random.chance(phase.stall[S_INFO]);
        dut::dense::ready(d) = !random.chance(phase.stall[S_DENSE]);
        dut::sparse::ready(d) = !random.chance(phase.stall[S_SPARSE]);
        dut::scale::ready(d) = !random.chance(phase.stall[S_SCALE]);
        dut::axi_aw::ready(d) = memory.aw_room() && !random.chance(phase.stall[S_AW]);
        dut::axi_w::ready(d) = memory.w_room() && !random.chance(phase.stall[S_W]);
        dut::axi_ar::ready(d) = memory.ar_room() && !random.chance(phase.stall[S_AR]);

        d.clk = 0;
        d.eval();
        if (cycle < resets) {
            d.clk = 1;
            d.eval();
            continue;
        }

        // What is transferred at the end of this cycle.
        bool moved = false;
        const bool took_request = dut::request::valid(d) && dut::request::ready(d);
        const bool took_record = dut::record::valid(d) && dut::record::ready(d);
        const bool took_word = dut::w::valid(d) && dut::w::ready(d);
        const bool took_b = dut::axi_b::valid(d) && dut::axi_b::ready(d);
        const bool took_r = dut::axi_r::valid(d) && dut::axi_r::ready(d);
        const bool was_idle = dut::idle(d);

        held_status.look(dut::status::valid(d), dut::status::ready(d), dut::status::payload(d),
                         "status");
        held_info.look(dut::info::valid(d), dut::info::ready(d), dut::info::payload(d), "info");
        held_words[0].look(dut::dense::valid(d), dut::dense::ready(d), dut::dense::payload(d),
                           "dense");
        held_words[1].look(dut::sparse::valid(d), dut::sparse::ready(d),
                           dut::sparse::payload(d), "sparse");
        held_words[2].look(dut::scale::valid(d), dut::scale::ready(d), dut::scale::payload(d),
                           "scale");
        held_aw.look(dut::axi_aw::valid(d), dut::axi_aw::ready(d), dut::axi_aw::payload(d), "AW");
        held_w.look(dut::axi_w::valid(d), dut::axi_w::ready(d), dut::axi_w::payload(d), "W");
        held_ar.look(dut::axi_ar::valid(d), dut::axi_ar::ready(d), dut::axi_ar::payload(d), "AR");

        if (took_request) {
            out.event('Q');
            out.word<uint64_t>(cycle);
            for (unsigned v : {request.op, request.tag, request.sequence, request.layer,
                               request.kv, request.head, request.heads})
                out.word<uint8_t>(v);
            out.word<uint32_t>(request.token);
            out.word<uint32_t>(request.number);
            out.word<uint8_t>(request.bad);
            sent++;
        }
        if (dut::axi_aw::valid(d) && dut::axi_aw::ready(d)) {
            const auto& p = dut::axi_aw::payload(d);
            moved = true;
            memory.aw(get(p, dut::axi_aw::addr), get(p, dut::axi_aw::len) + 1,
                      get(p, dut::axi_aw::size), get(p, dut::axi_aw::burst));
        }
        if (dut::axi_w::valid(d) && dut::axi_w::ready(d)) {
            const auto& p = dut::axi_w::payload(d);
            moved = true;
            Beat beat{};
            get_bytes(p, dut::axi_w::data, beat.data);
            for (unsigned at = 0; at < DATA_BYTES; at += 64)
                beat.strobes[at / 64] = get(p, {dut::axi_w::strb.at + at,
                                                std::min(64u, DATA_BYTES - at)});
            beat.last = get(p, dut::axi_w::last);
            memory.w(beat);
        }
        if (dut::axi_ar::valid(d) && dut::axi_ar::ready(d)) {
            const auto& p = dut::axi_ar::payload(d);
            moved = true;
            memory.ar(get(p, dut::axi_ar::addr), get(p, dut::axi_ar::len) + 1,
                      get(p, dut::axi_ar::size), get(p, dut::axi_ar::burst));
        }
        if (dut::info::valid(d) && dut::info::ready(d)) {
            const auto& p = dut::info::payload(d);
            moved = true;
            out.event('I');
            out.word<uint8_t>(get(p, dut::info::tag));
            out.word<uint8_t>(get(p, dut::info::head));
            out.word<uint32_t>(get(p, dut::info::tokens));
            out.word<uint32_t>(get(p, dut::info::skip));
            out.word<uint8_t>(get(p, dut::info::first));
            out.word<uint8_t>(get(p, dut::info::last));
        }
        auto gather = [&](unsigned kind, bool taken, const auto& p) {
            if (!taken) return;
            moved = true;
            uint8_t data[DATA_BYTES];
            get_bytes(p, dut::dense::data, data);
            transfers[kind].word(data, get(p, dut::dense::first), get(p, dut::dense::end),
                                 get(p, dut::dense::error), get(p, dut::dense::last));
        };
        gather(0, dut::dense::valid(d) && dut::dense::ready(d), dut::dense::payload(d));
        gather(1, dut::sparse::valid(d) && dut::sparse::ready(d), dut::sparse::payload(d));
        gather(2, dut::scale::valid(d) && dut::scale::ready(d), dut::scale::payload(d));
        if (dut::status::valid(d) && dut::status::ready(d)) {
            const auto& p = dut::status::payload(d);
            const unsigned tag = get(p, dut::status::tag), code = get(p, dut::status::status);
            const unsigned sequence = get(p, dut::status::sequence);
            moved = true;
            out.event('S');
            out.word<uint64_t>(cycle);
            for (unsigned v : {tag, unsigned(get(p, dut::status::op)), code, sequence})
                out.word<uint8_t>(v);
            client.answered(tag, code, sequence);
        }
        moved |= took_request | took_record | took_word | took_b | took_r;
        const unsigned free_pages = dut::free_pages(d);

        d.clk = 1;
        d.eval();

        // What was taken is withdrawn and leaves junk behind.
        if (took_request) {
            dut::request::valid(d) = 0, request_held = false;
            junk(dut::request::payload(d), {0, REQUEST_BITS}, random);
        }
        if (took_record) {
            dut::record::valid(d) = 0, client.records.pop_front();
            junk(dut::record::payload(d), {0, dut::record::bytes.bits}, random);
        }
        if (took_word) {
            dut::w::valid(d) = 0, client.words.pop_front();
            junk(dut::w::payload(d), dut::w::last, random);
        }
        if (took_b) {
            dut::axi_b::valid(d) = 0, memory.b_taken();
            junk(dut::axi_b::payload(d), dut::axi_b::resp, random);
        }
        if (took_r) {
            dut::axi_r::valid(d) = 0, memory.r_taken();
            junk(dut::axi_r::payload(d), dut::axi_r::data, random);
        }

        quiet = moved ? 0 : quiet + 1;
        const bool at_rest = client.outstanding == 0 && !request_held;
        if (quiet > QUIET_LIMIT)
            fail("deadlock: no transfer in " + std::to_string(QUIET_LIMIT) + " cycles, " +
                 std::to_string(client.outstanding) + " requests without a status");
        if (!draining && sent >= next_drain) draining = true;
        if (at_rest && was_idle) {
            if (!client.records.empty() || !client.words.empty())
                fail("idle, but records of appends were not taken");
            if (draining) {
                out.event('F');
                out.word<uint32_t>(free_pages);
                draining = false, drains++;
                next_drain = sent + random.within(1, 1000);
            } else if (sent >= requests && client.open_count == 0 && ++after_end > 300) {
                out.event('F');
                out.word<uint32_t>(free_pages);
                break;  // nothing came behind the end
            }
        }
    }
    out.event('E');
    for (uint64_t v : {cycle, memory.write_bursts, memory.read_bursts, memory.write_errors,
                       memory.read_errors, drains})
        out.word<uint64_t>(v);
    out.flush();
    model.final();
    return 0;
}

// The host of a Verilated kllm_accelerator, its memories and its clock, in one loop.
//
// usage: program FOLDER LATENCY. FOLDER has data.bin and port_NN.bin of golden.llm.pack --all; they are
// mapped. The pages of K and V are in this process alone. Requests come on standard input, answers
// go to standard output; senbazuru/talk/driver.py has both sides' words. Steps are those of
// senbazuru/host. Programs that the host sends command by command are run here.
#include <memory>

#include "backend.h"
#include "device.h"

namespace {

using namespace szr;

constexpr unsigned COMMAND_WORDS = 16, COUNTED_UNITS = 6, REQUEST_WORDS = 4;
constexpr uint32_t FAILED = (1u << 11) - 1;  // status bits without output

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

[[noreturn]] void give_up(const std::string& why) {
    Answer answer('X');
    answer.put_text(why);
    answer.send();
    std::_Exit(1);
}

// ---------------------------------------------------------------- programs of a host

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

class Accelerator : public Backed {
    uint16_t counted[COUNTED_UNITS] = {};  // commands of each unit since reset
    uint16_t began[COUNTED_UNITS] = {};    // the same at the beginning of this pass
    unsigned depth = 0;                    // words of the queue of commands
    bool is_stopped = false;               // in mid-program: answers are on their way
    bool has_stepped = false;              // commands of a step are not counted
    int64_t abort_at = -1;                 // of a step: the cycle, or -1
    uint64_t step_start = 0;

  public:
    std::vector<Report> reports;
    std::vector<uint32_t> readback;

    Accelerator(const std::string& folder, unsigned latency) : Backed(folder, latency) { restart(); }

    void reset() override { Chip::reset(), restart(); }
    void set_batch(const std::vector<uint32_t>& words) {
        for (uint32_t word : words)
            if (!write(BATCH, word)) fail("a register refused a word");
    }
    // A step follows. at: the cycle of it in which the host writes CONTROL.
    void will_step(int64_t at) {
        if (is_stopped) fail("a program was stopped: reset the accelerator first");
        has_stepped = true, abort_at = at, step_start = clock.cycle;
    }
    void waits() override {
        if (abort_at < 0 || int64_t(clock.cycle - step_start) < abort_at) return;
        abort_at = -1;
        if (!write(CONTROL, 1)) fail("a register refused a word");
    }
    // A pass begins: the waits of its programs count from here.
    void begin() { std::copy(counted, counted + COUNTED_UNITS, began); }
    std::vector<uint32_t> counted_from_reset(const std::vector<uint32_t>& words) const {
        auto moved_words = words;
        for (size_t first = 0; first < words.size(); first += COMMAND_WORDS)
            for (unsigned unit = 0; unit < COUNTED_UNITS; unit++) {
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
        const uint64_t start = clock.cycle;
        size_t sent = 0;
        bool aborting = false, ends = false, aborted = false;  // ends: CONTROL is written
        std::deque<unsigned> writes;  // registers, not answered yet
        Room room;
        room.restart(depth);
        Polls polls;
        clock.moved = clock.cycle;
        for (;;) {
            const int64_t now = int64_t(clock.cycle - start);
            if (stop_at >= 0 && now >= stop_at) {
                is_stopped = true;
                return false;
            }
            // Answers, which depend on no input of this cycle.
            if (dut::host_b::valid(model)) {
                const bool okay = get(dut::host_b::payload(model), dut::host_b::resp) == OKAY;
                if (!okay) fail("a word was refused, though LEVELS gave room for it");
                if (writes.front() == COMMAND) room.answer(), clock.moved = clock.cycle;
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
                if (which == STATUS && okay) take_report(word, clock.cycle - start);
                if (which != LEVELS && okay) clock.moved = clock.cycle;
            }
            if (polls.done() && writes.empty()) break;
            // What the host offers.
            aborting = abort_at >= 0 && now >= abort_at;
            dut::host_aw::valid(model) = dut::host_w::valid(model) = 0;
            const bool sending = !aborting && sent < words.size();
            if (dut::host_aw::ready(model) && dut::host_w::ready(model)) {
                if (aborting && !ends) {
                    ends = true, writes.push_back(CONTROL), offer(CONTROL, 1);
                } else if (sending && room.is_left()) {
                    room.write(), writes.push_back(COMMAND), offer(COMMAND, words[sent++]);
                }
            }
            dut::host_ar::valid(model) = 0;
            if (!polls.is_over() && dut::host_ar::ready(model)) {
                put(dut::host_ar::payload(model), dut::host_ar::addr,
                    polls.next(sending && !room.is_left(), room));
                dut::host_ar::valid(model) = 1;
            }
            step();
            if (is_silent())
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
    void restart() {
        std::fill(counted, counted + COUNTED_UNITS, 0);
        is_stopped = has_stepped = false, abort_at = -1;
        uint32_t levels = 0;
        read(LEVELS, levels);
        depth = levels & 0xFFFF;
        begin();
    }
    // A command that has a status has completed.
    void take_report(uint32_t word, uint64_t at) {
        reports.push_back({word, at});
        counted[word >> 13 & 7]++;
    }
};

// ---------------------------------------------------------------- requests

class Driver {
    Accelerator accelerator;
    Image image;
    std::unique_ptr<Device> device;
    bool failed = false;  // the programs of a pass are left out until the next 'G'

  public:
    Driver(const std::string& folder, unsigned latency) : accelerator(folder, latency) {}

    void serve() {
        for (;;) switch (take<char>()) {
            case 'I': begin(); break;
            case 'Q': ask(); break;
            case 'B': set_batch(); break;
            case 'G': failed = false, accelerator.begin(); break;
            case 'E': set_error(); break;
            case 'R': check(device->reset()), Answer('r').send(); break;
            case 'P': run(); break;
            case 'N': step(); break;
            case 'W': write_rows(); break;
            default: fail("unknown request");
            }
    }

  private:
    // Errors of the library, in one line.
    void check(int error) const {
        if (error) fail(accelerator.why.empty() ? szr_error_name(error) : accelerator.why);
    }
    void begin() {
        const auto bytes = take_many<uint8_t>(take<uint32_t>());
        if (!image.read(bytes.data(), bytes.size())) check(SZR_BAD_IMAGE);
        device = std::make_unique<Device>(backend_of(accelerator), image);
        check(device->begin());
        Answer('i').send();
    }
    void ask() {
        const auto words = take_many<uint32_t>(REQUEST_WORDS);
        uint32_t word = 0;
        check(device->request(words.data(), word));
        Answer answer('q');
        answer.put(word);
        answer.send();
    }
    void set_batch() {
        const auto count = take<uint32_t>();
        accelerator.set_batch(take_many<uint32_t>(count));
    }
    void step() {
        const auto tokens = take<uint32_t>(), choosing = take<uint32_t>();
        const auto abort_at = take<int64_t>();
        const auto batch = take_many<uint32_t>(take<uint32_t>());
        accelerator.will_step(abort_at);
        Step done;
        check(device->step(batch, tokens, choosing, done));
        Answer answer('n');
        answer.put(done.cycles);
        answer.put(done.written);
        answer.put(done.result);
        answer.put(uint32_t(done.checked));
        for (uint32_t cycles : done.unit_cycles) answer.put(cycles);
        for (uint32_t id : done.ids) answer.put(id);
        answer.send();
    }
    void write_rows() {
        const auto size = take<uint32_t>();
        const auto bytes = take_many<uint8_t>(size);
        uint64_t row;
        check(device->store(bytes.data(), size, row));
        Answer answer('w');
        answer.put(row);
        answer.send();
    }
    void set_error() {
        const auto port = take<uint32_t>();
        const auto word = take<uint64_t>();
        const auto is_set = take<uint8_t>();
        accelerator.set_error(port, word, is_set);
    }
    void run() {
        const auto abort_at = take<int64_t>(), stop_at = take<int64_t>();
        const auto count = take<uint32_t>();
        const auto words = take_many<uint32_t>(count);
        if (failed) return;
        const uint64_t start = accelerator.clock.cycle;
        std::vector<uint64_t> before;
        for (ReadPort& port : accelerator.ports) before.push_back(port.words);
        const bool ended =
            accelerator.run(accelerator.counted_from_reset(words), abort_at, stop_at);
        for (const Report& report : accelerator.reports) failed |= (report.word & FAILED) != 0;
        failed |= !ended || abort_at >= 0;
        Answer answer('p');
        answer.put<uint8_t>(failed);
        answer.put<uint64_t>(accelerator.clock.cycle - start);
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
    if (count != 3) give_up("usage: program FOLDER LATENCY");
    try {
        Driver(arguments[1], unsigned(std::strtoul(arguments[2], nullptr, 10))).serve();
    } catch (const ChipError& error) {
        give_up(error.what());
    }
}

// Which tokens a step takes, and what follows from its result. Nothing here knows a chip.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "device.h"

namespace szr {

struct Request;
using Shared = std::shared_ptr<Request>;

struct Request {
    uint64_t number = 0;
    std::vector<uint32_t> tokens, stops;  // tokens: the prompt, then the chosen ones
    size_t prompt = 0, most = 0;          // tokens of the prompt; of all, at the end
    Sampling sampling;
    uint32_t user = 0;
    bool is_prefix = false;  // it chooses no token, and stays open
    Shared prefix;           // whose tokens are the first of its own; null: none

    int sequence = -1;
    uint32_t shared = 0;  // cached tokens that its sequence has from its prefix
    uint32_t cached = 0;  // tokens whose K and V are in the pages
    uint32_t reason = SZR_RUNS;
    uint32_t steps = 0, repeats = 0;
    uint64_t last_step = 0;
    // A suspect was in a step that failed. It goes alone until it has as many tokens as that step
    // would have given it. failures: steps since then that failed, that one too.
    uint32_t failures = 0, mark = 0;

    bool is_suspect() const { return failures > 0; }
    bool is_active() const { return reason == SZR_RUNS; }
    uint32_t left() const { return uint32_t(tokens.size()) - cached; }
    // A prefix that others can begin with.
    bool is_kept() const { return is_prefix && is_active() && sequence >= 0 && !left(); }
    bool waits_for_prefix() const { return prefix && prefix->is_active() && !prefix->is_kept(); }
};

// The tokens of one request in a step: the next `count` of it. If they are all, the last chooses.
struct Part {
    Shared request;
    uint32_t count;
    bool chooses;
};

struct Plan {
    std::vector<Part> parts;
    std::vector<Place> places;
    uint32_t choosing = 0;
};

class Scheduler {
    const Image& image;
    const uint32_t policy, places, sequences;
    const size_t most_requests;
    uint32_t limit;  // most sequences at present
    uint64_t numbers = 0, steps = 0;
    std::map<uint64_t, Shared> requests;  // that are not freed
    std::vector<Shared> slots;            // of each sequence that is open
    std::map<uint32_t, uint64_t> served;  // places that a user with active requests was given
    std::deque<szr_event> events;

  public:
    szr_stats stats{};

    // options: as checked by is_valid.
    Scheduler(const Image& image, const szr_options& options);
    static bool is_valid(const Image& image, const szr_options& options);

    int submit(const szr_prompt& prompt, uint64_t& number);
    int prefix(const uint32_t* tokens, size_t count, uint32_t user, uint64_t& number);
    int cancel(uint64_t number);
    int free(uint64_t number);
    int usage(uint64_t number, szr_usage& usage) const;
    size_t poll(szr_event* to, size_t room);
    void count(szr_stats& to) const;
    szr_slot slot(size_t sequence) const;
    size_t slot_count() const { return slots.size(); }

    // Sequences that nobody needs any more.
    std::vector<uint32_t> leaving() const;
    void left(uint32_t sequence) { slots[sequence] = nullptr; }
    // Requests that get a sequence now, in order.
    std::vector<Shared> joining() const;
    // The sequence that a request's own is to be a child of, or -1.
    int parent_of(const Shared& request) const;
    // Whether the chip gave a sequence that was free; parent: what parent_of gave.
    bool joined(const Shared& request, uint32_t sequence, bool is_child);
    // The chip made no child for a request.
    void refused(const Shared& request, uint32_t status);
    // The next step; without places where there is nothing to do.
    Plan plan();
    // The step has ended.
    void complete(const Plan& plan, const Step& step);
    // The chip was reset: no sequence is open.
    void restart();

  private:
    std::vector<Shared> active(bool open) const;
    bool is_before(const Shared& a, const Shared& b) const;
    const Shared* first_suspect(const std::vector<Shared>& among) const;
    std::vector<Part> chosen_parts(uint32_t room) const;
    static Plan placed(const std::vector<Part>& parts);
    void take_id(const Shared& request, uint32_t id);
    void fail(const Plan& plan, uint32_t result);
    void again(const Shared& request);
    int add(const Shared& request, uint64_t& number);
    bool has_words(const std::vector<uint32_t>& tokens) const;
    void want_of_pages();
    void end(const Shared& request, uint32_t reason, uint32_t fault = 0);
    uint32_t opened() const;
    uint32_t ordinary() const;
    uint32_t shared_pages() const;
};

}  // namespace szr

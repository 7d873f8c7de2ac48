#include "scheduler.h"

#include <algorithm>

namespace szr {

namespace {

constexpr uint32_t REQUESTS = 1024;  // by default
constexpr double HOTTEST = 100;      // the largest temperature
constexpr uint32_t FAILURES = 2;     // of a request; one more where it is alone ends it

uint32_t or_most(uint32_t wanted, uint32_t most) { return wanted ? wanted : most; }

}  // namespace

Scheduler::Scheduler(const Image& image, const szr_options& options)
    : image(image), policy(options.policy), places(or_most(options.places, image.facts.places)),
      sequences(or_most(options.sequences, image.facts.sequences)),
      most_requests(or_most(options.requests, REQUESTS)), limit(sequences),
      slots(image.facts.sequences) {}

bool Scheduler::is_valid(const Image& image, const szr_options& options) {
    return options.policy <= SZR_FAIR && options.places <= image.facts.places &&
           options.sequences <= image.facts.sequences;
}

// ---------------------------------------------------------------- requests

int Scheduler::submit(const szr_prompt& prompt, uint64_t& number) {
    const szr_facts& facts = image.facts;
    if (!prompt.prompt_tokens) return SZR_EMPTY_PROMPT;
    Shared prefix;
    if (prompt.prefix) {
        if (!facts.forks) return SZR_NO_FORKS;
        const auto found = requests.find(prompt.prefix);
        if (found == requests.end()) return SZR_UNKNOWN;
        prefix = found->second;
        if (!prefix->is_prefix) return SZR_NOT_A_PREFIX;
        if (!prefix->is_active()) return SZR_ENDED;
    }
    const size_t before = prefix ? prefix->tokens.size() : 0;
    if (prompt.prompt_tokens >= facts.context - before) return SZR_TOO_LONG;
    if (!prompt.prompt || (prompt.stop_tokens && !prompt.stops)) return SZR_BAD_ARGUMENT;
    if (prompt.stop_tokens > facts.vocabulary) return SZR_BAD_ARGUMENT;
    if (!prompt.max_tokens) return SZR_BAD_MAX_TOKENS;
    const bool is_known = prompt.temperature >= 0 && prompt.temperature <= HOTTEST;  // no NaN
    const bool draws = prompt.temperature > 0;
    if (!is_known || (draws && (!prompt.top_k || prompt.top_k > facts.top))) return SZR_BAD_SAMPLING;
    auto made = std::make_shared<Request>();
    if (prefix) made->tokens = prefix->tokens;
    made->tokens.insert(made->tokens.end(), prompt.prompt, prompt.prompt + prompt.prompt_tokens);
    made->stops.assign(prompt.stops, prompt.stops + prompt.stop_tokens);
    if (!has_words(made->tokens) || !has_words(made->stops)) return SZR_BAD_TOKEN;
    made->prefix = prefix;
    made->prompt = before + prompt.prompt_tokens;
    made->most = size_t(std::min<uint64_t>(made->prompt + uint64_t(prompt.max_tokens), facts.context));
    if (draws && prompt.top_k > 1)
        made->sampling = Sampling::at(prompt.temperature, prompt.top_k, prompt.seed);
    made->user = prompt.user;
    return add(made, number);
}

int Scheduler::prefix(const uint32_t* tokens, size_t count, uint32_t user, uint64_t& number) {
    if (!image.facts.forks) return SZR_NO_FORKS;
    if (!count) return SZR_EMPTY_PROMPT;
    // A token of the prompt that follows it, and a chosen one.
    if (count >= image.facts.context - 1) return SZR_TOO_LONG;
    if (!tokens) return SZR_BAD_ARGUMENT;
    auto made = std::make_shared<Request>();
    made->tokens.assign(tokens, tokens + count);
    if (!has_words(made->tokens)) return SZR_BAD_TOKEN;
    uint32_t prefixes = 1;
    for (const auto& [other, each] : requests) prefixes += each->is_prefix && each->is_active();
    if (prefixes >= sequences) return SZR_TOO_MANY;
    made->is_prefix = true, made->prompt = made->most = count, made->user = user;
    return add(made, number);
}

bool Scheduler::has_words(const std::vector<uint32_t>& tokens) const {
    return std::all_of(tokens.begin(), tokens.end(),
                       [this](uint32_t token) { return token < image.facts.vocabulary; });
}

int Scheduler::add(const Shared& request, uint64_t& number) {
    if (requests.size() >= most_requests) return SZR_TOO_MANY;
    // Who comes now has no right to what others were given before.
    if (!served.count(request->user)) {
        uint64_t least = served.empty() ? 0 : served.begin()->second;
        for (const auto& [user, places] : served) least = std::min(least, places);
        served[request->user] = least;
    }
    number = request->number = ++numbers;
    requests[number] = request;
    return SZR_OK;
}

int Scheduler::cancel(uint64_t number) {
    const auto found = requests.find(number);
    if (found == requests.end()) return SZR_UNKNOWN;
    if (!found->second->is_active()) return SZR_ENDED;
    end(found->second, SZR_CANCELLED);
    return SZR_OK;
}

int Scheduler::free(uint64_t number) {
    const auto found = requests.find(number);
    if (found == requests.end()) return SZR_UNKNOWN;
    if (found->second->is_active()) return SZR_ACTIVE;
    requests.erase(found);
    std::erase_if(events, [&](const szr_event& each) { return each.request == number; });
    return SZR_OK;
}

int Scheduler::usage(uint64_t number, szr_usage& usage) const {
    const auto found = requests.find(number);
    if (found == requests.end()) return SZR_UNKNOWN;
    const Request& each = *found->second;
    usage = {uint32_t(each.prompt), uint32_t(each.tokens.size() - each.prompt), each.cached,
             each.reason, each.steps, each.repeats, each.sequence, each.shared};
    return SZR_OK;
}

size_t Scheduler::poll(szr_event* to, size_t room) {
    const size_t count = std::min(room, events.size());
    std::copy_n(events.begin(), count, to);
    events.erase(events.begin(), events.begin() + long(count));
    return count;
}

void Scheduler::count(szr_stats& to) const {
    to = stats;
    to.requests = uint32_t(requests.size()), to.limit = limit;
    for (const auto& [number, each] : requests)
        to.waiting += each->is_active() && each->sequence < 0;
    for (size_t n = 0; n < slots.size(); n++) {
        if (!slots[n]) continue;
        const bool stays = slots[n]->is_active() && slots[n]->sequence == int(n);
        const bool is_kept = stays && slots[n]->is_kept();
        to.running += stays && !is_kept, to.prefixes += is_kept, to.leaving += !stays;
        to.pages_most += slot(n).pages_most;
    }
    to.pages_most += shared_pages();
}

// Those of prefixes that have ended, and whose children have not.
uint32_t Scheduler::shared_pages() const {
    uint32_t pages = 0;
    std::vector<const Request*> seen;
    for (const Shared& each : slots) {
        if (!each || !each->shared) continue;
        const Shared& prefix = each->prefix;
        const bool is_open = std::count(slots.begin(), slots.end(), prefix) > 0;
        if (is_open || std::count(seen.begin(), seen.end(), prefix.get())) continue;
        seen.push_back(prefix.get()), pages += image.pages[each->shared];
    }
    return pages;
}

szr_slot Scheduler::slot(size_t sequence) const {
    const Shared& each = slots[sequence];
    if (!each) return {};
    // A child has a page of its own for each that its prefix has not filled.
    const std::vector<uint32_t>& pages = image.pages;
    uint32_t own = pages[each->cached];
    if (each->shared) own = std::min(own, pages[each->cached - each->shared] + pages[1]);
    return {each->number, each->user, uint32_t(each->tokens.size()), each->cached, own,
            each->shared};
}

// ---------------------------------------------------------------- join and leave

uint32_t Scheduler::opened() const {
    return uint32_t(std::count_if(slots.begin(), slots.end(), [](auto& each) { return !!each; }));
}

// Of requests that are no prefixes. `limit` counts these.
uint32_t Scheduler::ordinary() const {
    return uint32_t(std::count_if(slots.begin(), slots.end(),
                                  [](auto& each) { return each && !each->is_prefix; }));
}

std::vector<uint32_t> Scheduler::leaving() const {
    std::vector<uint32_t> found;
    for (uint32_t n = 0; n < slots.size(); n++)
        if (slots[n] && (!slots[n]->is_active() || slots[n]->sequence != int(n))) found.push_back(n);
    return found;
}

// Active requests with a sequence, or without one, in the order of the policy.
std::vector<Shared> Scheduler::active(bool open) const {
    std::vector<Shared> found;
    for (const auto& [number, each] : requests)
        if (each->is_active() && (each->sequence >= 0) == open) found.push_back(each);
    std::stable_sort(found.begin(), found.end(),
                     [this](const Shared& a, const Shared& b) { return is_before(a, b); });
    return found;
}

bool Scheduler::is_before(const Shared& a, const Shared& b) const {
    if (policy == SZR_SHORTEST && a->prompt != b->prompt) return a->prompt < b->prompt;
    if (policy == SZR_FAIR && a->user != b->user) {
        const uint64_t had = served.at(a->user), other = served.at(b->user);
        if (had != other) return had < other;
    }
    return a->number < b->number;
}

const Shared* Scheduler::first_suspect(const std::vector<Shared>& among) const {
    for (const Shared& each : among)
        if (each->is_suspect()) return &each;
    return nullptr;
}

// A suspect goes alone. Prefixes come first, then those that have lost their sequences.
std::vector<Shared> Scheduler::joining() const {
    if (first_suspect(active(true))) return {};
    std::vector<Shared> waiting = active(false);
    const uint32_t open = opened();
    if (const Shared* suspect = first_suspect(waiting))
        return open < sequences ? std::vector<Shared>{*suspect} : std::vector<Shared>{};
    std::erase_if(waiting, [](const Shared& each) { return each->waits_for_prefix(); });
    std::stable_partition(waiting.begin(), waiting.end(),
                          [](const Shared& each) { return each->repeats > 0; });
    std::stable_partition(waiting.begin(), waiting.end(),
                          [](const Shared& each) { return each->is_prefix; });
    std::vector<Shared> found;
    uint32_t others = ordinary();
    for (const Shared& each : waiting) {
        if (open + found.size() >= sequences) break;
        if (!each->is_prefix && others >= limit) break;
        others += !each->is_prefix;
        found.push_back(each);
    }
    return found;
}

// A suspect has pages of its own: what it shares may be what fails.
int Scheduler::parent_of(const Shared& request) const {
    const Shared& prefix = request->prefix;
    return prefix && prefix->is_kept() && !request->is_suspect() ? prefix->sequence : -1;
}

bool Scheduler::joined(const Shared& request, uint32_t sequence, bool is_child) {
    if (slots[sequence]) return false;
    slots[sequence] = request;
    request->shared = is_child ? uint32_t(request->prefix->tokens.size()) : 0;
    request->cached = request->shared;
    stats.forks += is_child;
    // Who was cancelled at this moment leaves in the next step.
    if (request->is_active()) request->sequence = int(sequence);
    return true;
}

// A want of pages passes when others end. Else it goes alone, and with no prefix.
void Scheduler::refused(const Shared& request, uint32_t status) {
    if (!request->is_active()) return;
    const bool is_want = status == OUT_OF_PAGES;
    if (is_want && ordinary()) {
        limit = ordinary();
        return;
    }
    request->failures++;
    request->mark = uint32_t(is_want ? request->most : request->tokens.size());
}

// ---------------------------------------------------------------- steps

Plan Scheduler::plan() {
    Plan plan;
    for (uint32_t room = places; room && plan.places.empty(); room--) {
        const std::vector<Part> parts = chosen_parts(room);
        if (parts.empty()) break;
        plan = placed(parts);
        // The machine may have no rows for so many tokens.
        if (image.find(uint32_t(plan.places.size()), plan.choosing) < 0) plan = {};
    }
    for (const Part& part : plan.parts) served[part.request->user] += part.count;
    return plan;
}

// Each request that has but one token left gets a place, then the others as many as there are.
std::vector<Part> Scheduler::chosen_parts(uint32_t room) const {
    std::vector<Shared> open = active(true);
    if (const Shared* suspect = first_suspect(open)) open = {*suspect};
    std::erase_if(open, [](const Shared& each) { return each->is_kept(); });
    const auto prompts = std::stable_partition(
        open.begin(), open.end(), [](const Shared& each) { return each->left() == 1; });
    // Where there are too few places, each gets one in turn.
    std::stable_sort(open.begin(), prompts, [](const Shared& a, const Shared& b) {
        return a->last_step < b->last_step;
    });
    std::vector<Part> parts;
    for (const Shared& each : open) {
        if (!room) break;
        const uint32_t count = std::min(room, each->left());
        parts.push_back({each, count, count == each->left() && !each->is_prefix});
        room -= count;
    }
    return parts;
}

// The places that choose come last, as the programs have it. Tokens of a sequence are in order.
Plan Scheduler::placed(const std::vector<Part>& parts) {
    Plan plan;
    plan.parts = parts;
    const auto put = [&plan](const Request& from, uint32_t position) {
        plan.places.push_back({uint32_t(from.sequence), position, from.tokens[position], from.sampling});
    };
    for (const Part& part : parts)
        for (uint32_t n = 0; n < part.count - part.chooses; n++)
            put(*part.request, part.request->cached + n);
    for (const Part& part : parts)
        if (part.chooses) put(*part.request, part.request->cached + part.count - 1), plan.choosing++;
    return plan;
}

void Scheduler::complete(const Plan& plan, const Step& step) {
    steps++;
    const bool failed = !is_done(step.result);
    stats.steps++, stats.failed_steps += failed;
    stats.tokens += plan.places.size(), stats.cycles += step.cycles;
    stats.last = {step.cycles, step.lane_cycles, uint32_t(plan.places.size()), plan.choosing,
                  uint32_t(plan.parts.size()), step.written, step.result, failed, {}};
    std::copy(step.unit_cycles.begin(), step.unit_cycles.end(), stats.last.unit_cycles);
    for (const Part& part : plan.parts) part.request->steps++, part.request->last_step = steps;
    if (failed) return fail(plan, step.result);
    stats.chosen_tokens += plan.choosing;
    auto id = step.ids.begin();
    for (const Part& part : plan.parts) {
        Request& request = *part.request;
        request.cached += part.count;
        if (request.cached >= request.mark) request.failures = request.mark = 0;
        if (part.chooses) take_id(part.request, *id++);
    }
}

void Scheduler::take_id(const Shared& request, uint32_t id) {
    if (!request->is_active()) return;  // it was cancelled during the step
    request->tokens.push_back(id);
    events.push_back({request->number, SZR_TOKEN, id, 0, 0});
    const auto& stops = request->stops;
    if (std::find(stops.begin(), stops.end(), id) != stops.end()) end(request, SZR_STOP);
    else if (request->tokens.size() >= request->most) end(request, SZR_LENGTH);
}

// No id of a failed step counts: its sequences have some of its K and V, and are given up.
void Scheduler::fail(const Plan& plan, uint32_t result) {
    const bool is_want = unit_of(result) == CACHE_UNIT && status_of(result) == CAPACITY;
    // Prefixes that are kept have the pages, and nobody who comes to an end.
    const bool alone = is_want ? opened() == 1 || !ordinary() : plan.parts.size() == 1;
    if (alone) {
        const Shared& request = plan.parts[0].request;
        if (request->is_active() && (is_want || request->failures >= FAILURES)) {
            end(request, SZR_FAULT, result);
            for (const Part& part : plan.parts) again(part.request);
            return;
        }
    }
    if (is_want) return want_of_pages();
    for (const Part& part : plan.parts) {
        Request& request = *part.request;
        request.mark = std::max(request.mark, request.cached + part.count);
        request.failures++;
        again(part.request);
    }
}

// All give their pages back, so that fewer can go on and come to their ends. Who was the only one
// beside prefixes goes on without them.
void Scheduler::want_of_pages() {
    const uint32_t others = ordinary();
    limit = std::max(2u, std::min(limit, others)) - 1;
    for (const Shared& each : slots) {
        if (!each) continue;
        if (others == 1 && !each->is_prefix && opened() > 1)
            each->failures++, each->mark = uint32_t(each->most);
        again(each);
    }
}

// Its tokens go through once more, in another sequence.
void Scheduler::again(const Shared& request) {
    if (!request->is_active()) return;
    request->sequence = -1, request->cached = request->shared = 0, request->repeats++;
}

void Scheduler::end(const Shared& request, uint32_t reason, uint32_t fault) {
    request->reason = reason, request->sequence = -1, request->failures = 0;
    events.push_back({request->number, SZR_END, 0, reason, fault});
    limit = std::min(limit + 1, sequences);
    for (const auto& [number, each] : requests)
        if (each->is_active() && each->user == request->user) return;
    served.erase(request->user);
}

void Scheduler::restart() {
    for (Shared& each : slots) {
        if (each) again(each);
        each = nullptr;
    }
}

}  // namespace szr

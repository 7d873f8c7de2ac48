#include "device.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace szr {

namespace {

constexpr unsigned EMPTY = 64;  // empty answers one after another: no word is in flight
constexpr double FP16_MAX = 65504;

// An FP16 word of a normal number, rounded to the nearest, ties to even.
uint32_t half(double value) {
    int exponent = std::ilogb(value);
    double mantissa = std::nearbyint(std::ldexp(value, 10 - exponent));
    if (mantissa >= 2048) mantissa /= 2, exponent++;
    return uint32_t(exponent + 15) << 10 | (uint32_t(mantissa) & 0x3FF);
}

}  // namespace

Sampling Sampling::at(double temperature, uint32_t k, uint32_t seed) {
    const double inverse = std::min(std::numbers::log2e / temperature, FP16_MAX);
    return {true, k | half(inverse) << 16, seed};
}

Device::Device(const szr_backend& backend, const Image& image)
    : backend(backend), image(image), free_row(image.row), stored(image.programs.size()) {}

int Device::begin() {
    const uint32_t* words = image.thresholds.data();
    for (uint32_t layer = 0; layer < image.layers; layer++)
        for (uint32_t kv = 0; kv < 2; kv++, words += 2) {
            const uint32_t request_words[] = {THRESHOLDS | layer << 24, kv << 31, words[0], words[1]};
            uint32_t answer;
            if (int error = request(request_words, answer)) return error;
            if (answer >> 8 & 0xF) return SZR_CHIP;
        }
    return SZR_OK;
}

int Device::reset() {
    if (int error = backend.reset(backend.chip)) return error;
    // A reset harms no memory, but what is wrong may be a program.
    for (Stored& each : stored) each.right = false;
    return begin();
}

int Device::request(const uint32_t* words, uint32_t& answer) {
    for (unsigned n = 0; n < 4; n++)
        if (int error = write(REQUEST, words[n])) return error;
    int error;
    while ((error = read(ANSWER, answer)) == SZR_NOTHING)
        if (int given_up = backend.wait(backend.chip)) return given_up;
    return error;
}

int Device::open(uint32_t& sequence) {
    const uint32_t words[4] = {OPEN, 0, 0, 0};
    uint32_t answer;
    if (int error = request(words, answer)) return error;
    sequence = answer >> 16 & 0xFF;
    return answer >> 8 & 0xF || sequence >= image.facts.sequences ? SZR_CHIP : SZR_OK;
}

int Device::free(uint32_t sequence) {
    const uint32_t words[4] = {FREE | sequence << 16, 0, 0, 0};
    uint32_t answer;
    if (int error = request(words, answer)) return error;
    return answer >> 8 & 0xF ? SZR_CHIP : SZR_OK;
}

int Device::fork(uint32_t sequence, uint32_t tokens, uint32_t& child, uint32_t& status) {
    const uint32_t words[4] = {FORK | sequence << 16, tokens, 0, 0};
    uint32_t answer;
    if (int error = request(words, answer)) return error;
    child = answer >> 16 & 0xFF, status = answer >> 8 & 0xF;
    if (!status) return child >= image.facts.sequences ? SZR_CHIP : SZR_OK;
    return status == OUT_OF_PAGES || status == SLAVE_ERROR || status == DECODE_ERROR ? SZR_OK
                                                                                     : SZR_CHIP;
}

int Device::step(const std::vector<Place>& places, uint32_t choosing, Step& step) {
    std::vector<uint32_t> batch;
    const auto first_choosing = uint32_t(places.size()) - choosing;
    for (uint32_t n = 0; n < places.size(); n++) {
        const Place& place = places[n];
        const bool draws = place.sampling.drawn && n >= first_choosing;
        batch.push_back(n | 1u << 8 | uint32_t(draws) << 9 | place.sequence << 16);
        batch.push_back(place.position), batch.push_back(place.token);
        if (draws) batch.push_back(place.sampling.k_word), batch.push_back(place.sampling.seed);
    }
    return this->step(batch, uint32_t(places.size()), choosing, step);
}

int Device::step(const std::vector<uint32_t>& batch, uint32_t tokens, uint32_t choosing,
                 Step& step) {
    const int number = image.find(tokens, choosing);
    if (number < 0) return SZR_BAD_ARGUMENT;
    Stored& program = stored[size_t(number)];
    step = Step{};
    step.checked = !program.right, step.lane_cycles = image.programs[size_t(number)].lane_cycles;
    if (step.checked)
        if (int error = store(size_t(number))) return error;
    std::optional<UnitCycles> before, after;
    if (int error = count(before)) return error;
    const uint64_t start = backend.cycle(backend.chip);
    written = 0;
    for (uint32_t word : batch)
        if (int error = write(BATCH, word)) return error;
    if (int error = write(RUN, uint32_t(program.row) | (step.checked ? RUN_CHECKS : 0))) return error;
    int error;
    while ((error = read(RESULT, step.result)) == SZR_NOTHING)
        if (int given_up = backend.wait(backend.chip)) return given_up;
    if (error) return error;
    if ((error = ids_of(choosing, step))) return error;
    step.cycles = backend.cycle(backend.chip) - start, step.written = written;
    if ((error = count(after))) return error;
    if (before && after)
        for (unsigned unit = 0; unit < UNIT_COUNT; unit++)
            step.unit_cycles[unit] = (*after)[unit] - (*before)[unit];
    // A run that cannot read its program writes it once more before the next one.
    program.right = unit_of(step.result) != RUN_UNIT || is_done(step.result);
    return SZR_OK;
}

// What was on its way to the host when the run ended.
int Device::ids_of(uint32_t choosing, Step& step) {
    uint32_t word;
    for (unsigned empty = 0; empty < EMPTY && step.ids.size() < choosing;) {
        const int error = read(READBACK, word);
        if (error && error != SZR_NOTHING) return error;
        if (error) empty++;
        else step.ids.push_back(word), empty = 0;
    }
    if (!is_done(step.result)) return SZR_OK;
    if (step.ids.size() < choosing) return SZR_CHIP;
    for (uint32_t id : step.ids)
        if (id >= image.facts.vocabulary) return SZR_CHIP;
    return SZR_OK;
}

int Device::take_rows(uint64_t size, uint64_t& row) {
    if (free_row + size / ROW_BYTES > RUN_CHECKS) return SZR_NO_ROOM;
    row = free_row, free_row += size / ROW_BYTES;
    return SZR_OK;
}

int Device::store(const void* bytes, uint64_t size, uint64_t& row) {
    if (int error = take_rows(size, row)) return error;
    return backend.write_data(backend.chip, row * ROW_BYTES, bytes, size);
}

int Device::store(size_t program) {
    const Program& made = image.programs[program];
    Stored& place = stored[program];
    if (!place.row)
        if (int error = take_rows(made.bytes, place.row)) return error;
    return backend.write_data(backend.chip, place.row * ROW_BYTES, image.bytes.data() + made.at,
                              made.bytes);
}

uint32_t Device::programs() const {
    return uint32_t(std::count_if(stored.begin(), stored.end(), [](auto& each) { return each.row; }));
}

int Device::write(Register offset, uint32_t word) {
    int error;
    while ((error = backend.write(backend.chip, offset, word)) == SZR_NOTHING)
        if (int given_up = backend.wait(backend.chip)) return given_up;
    written += !error;
    return error;
}

int Device::read(Register offset, uint32_t& word) {
    return backend.read(backend.chip, offset, &word);
}

int Device::count(std::optional<UnitCycles>& cycles) {
    UnitCycles found;
    for (unsigned unit = 0; unit < UNIT_COUNT; unit++) {
        const int error = read(Register(BUSY_LOAD + 4 * unit), found[unit]);
        if (error) return error == SZR_NOTHING ? SZR_OK : error;
    }
    cycles = found;
    return SZR_OK;
}

}  // namespace szr

// The chip's registers as a host uses them: requests to the cache, and steps.
#pragma once
#include <array>
#include <optional>
#include <vector>

#include "image.h"
#include "registers.h"

namespace szr {

// How a place chooses; drawn: from the k largest, by two more words of BATCH.
struct Sampling {
    bool drawn = false;
    uint32_t k_word = 0, seed = 0;
    // k largest at a temperature above 0.
    static Sampling at(double temperature, uint32_t k, uint32_t seed);
};

struct Place {
    uint32_t sequence, position, token;
    Sampling sampling;
};

// Cycles in which each unit was at work.
using UnitCycles = std::array<uint32_t, UNIT_COUNT>;

struct Step {
    uint32_t result = 0;
    std::vector<uint32_t> ids;  // of the places that choose; of a failed one as many as there are
    uint64_t cycles = 0, lane_cycles = 0;
    UnitCycles unit_cycles{};  // zeros: the chip does not count
    uint32_t written = 0;
    bool checked = false;  // the program was read once more, to compare its check word
};

// Each function gives an enum szr_error.
class Device {
    szr_backend backend;
    const Image& image;
    uint64_t free_row;
    struct Stored {
        uint64_t row = 0;  // 0: it has none yet
        bool right = false;  // the check word was compared
    };
    std::vector<Stored> stored;  // of each program
    uint32_t written = 0;        // words of registers

  public:
    Device(const szr_backend& backend, const Image& image);
    // Sets the thresholds: after a reset.
    int begin();
    int reset();
    // A request to the cache of four words; the word of its answer.
    int request(const uint32_t* words, uint32_t& answer);
    int open(uint32_t& sequence);
    int free(uint32_t sequence);
    // A child of `sequence`, which has so many tokens; status: not 0 where there is none.
    int fork(uint32_t sequence, uint32_t tokens, uint32_t& child, uint32_t& status);
    // The last `choosing` places choose. SZR_OK: a result came, which may be a failure.
    int step(const std::vector<Place>& places, uint32_t choosing, Step& step);
    // The same with words of BATCH.
    int step(const std::vector<uint32_t>& batch, uint32_t tokens, uint32_t choosing, Step& step);
    uint32_t programs() const;
    // Writes rows to the data memory where nothing else is; the first of them.
    int store(const void* bytes, uint64_t size, uint64_t& row);

  private:
    int write(Register offset, uint32_t word);
    int read(Register offset, uint32_t& word);
    // Since reset, modulo 2^32; none: the chip does not count.
    int count(std::optional<UnitCycles>& cycles);
    int take_rows(uint64_t size, uint64_t& row);
    int store(size_t program);
    int ids_of(uint32_t choosing, Step& step);
};

}  // namespace szr

// Codes that the chip and its host share. A test compares each with golden's.
#pragma once
#include <cstdint>

namespace szr {

// Offsets of registers: golden.axi.format.
enum Register : uint32_t {
    CONTROL = 0x08,
    LEVELS = 0x0C,
    COMMAND = 0x10,
    STATUS = 0x14,
    READBACK = 0x18,
    REQUEST = 0x1C,
    ANSWER = 0x20,
    BATCH = 0x24,
    RUN = 0x28,
    RESULT = 0x2C,
    BUSY_LOAD = 0x34,  // one for each unit, in order
    BUSY_CACHE = 0x48,
};

// Requests to the cache: golden.paging.format.Op.
enum Op : uint32_t { OPEN = 0, FREE = 4, THRESHOLDS = 5, FORK = 6 };

// How a FORK may fail: golden.paging.format.Status.
enum Status : uint32_t { OUT_OF_PAGES = 11, SLAVE_ERROR = 12, DECODE_ERROR = 13 };

// Units and statuses: golden.kllm.isa.
constexpr unsigned CACHE_UNIT = 5, RUN_UNIT = 7;
constexpr uint32_t RUN_CHECKS = 1u << 31;
constexpr uint32_t CAPACITY = 1u << 6;
constexpr uint32_t SOFT = 3u << 11;  // OVERFLOW, SCALE_NONFINITE: output is written

constexpr const char* UNITS[] = {"LOAD", "QUANTIZE", "MATMUL", "FUNCTION", "READ", "CACHE"};
constexpr unsigned UNIT_COUNT = sizeof UNITS / sizeof *UNITS;
static_assert(BUSY_LOAD + 4 * (UNIT_COUNT - 1) == BUSY_CACHE);
// The name of each bit.
constexpr const char* COMMAND_STATUS[] = {
    "MALFORMED", "DEPENDENCY", "RANGE", "CODEBOOK_MISSING", "SLOT_MISMATCH", "NONFINITE",
    "CAPACITY", "BUS_ERROR", "NEGATIVE", "ABORTED", "LANE_FAULT", "OVERFLOW", "SCALE_NONFINITE",
};
constexpr const char* RUN_STATUS[] = {
    "HEADER", "FOREIGN", "DAMAGED", "", "", "", "", "BUS_ERROR", "", "ABORTED", "", "OVERFLOW",
    "SCALE_NONFINITE",
};

inline unsigned status_of(uint32_t result) { return result & 0x1FFF; }
inline unsigned unit_of(uint32_t result) { return result >> 13 & 7; }
inline unsigned tag_of(uint32_t result) { return result >> 16; }
// Whether a run did all that its program says.
inline bool is_done(uint32_t result) {
    return unit_of(result) == RUN_UNIT && !(status_of(result) & ~SOFT);
}

}  // namespace szr

// What a host knows of a model: golden.kllm.model.host_image writes it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "senbazuru.h"

namespace szr {

constexpr unsigned ROW_BYTES = 32;

struct Program {
    uint32_t tokens, choosing;  // places; those of them that choose, the last ones
    uint64_t lane_cycles;
    size_t at, bytes;  // in the image
};

struct Image {
    szr_facts facts{};
    uint32_t layers = 0, row = 0;      // row: the first of the data memory without data
    std::vector<uint32_t> thresholds;  // two words for each layer's K and V
    std::vector<uint32_t> pages;       // most of a sequence of 0, 1, ... context tokens
    std::vector<Program> programs;
    std::vector<uint8_t> bytes;

    // False: it is damaged, or a model of it cannot be run.
    bool read(const void* from, size_t size);
    // The index of a program, or -1.
    int find(uint32_t tokens, uint32_t choosing) const;
};

}  // namespace szr

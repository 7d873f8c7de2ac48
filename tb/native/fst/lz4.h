// Blocks in the format of LZ4, for Verilator's writer of FST files: no library is needed.
//
// A reader of LZ4 reads them. The search is the simplest one: the last place of each four bytes.
#pragma once
#include <cstdint>
#include <cstring>

inline int LZ4_compressBound(int size) { return size + size / 255 + 16; }

namespace fst_lz4 {
inline uint32_t word(const uint8_t* at) {
    uint32_t value;
    std::memcpy(&value, at, 4);
    return value;
}

// What a length adds to its four bits of the token.
inline uint8_t* length(uint8_t* out, int value) {
    for (value -= 15; value >= 255; value -= 255) *out++ = 255;
    *out++ = static_cast<uint8_t>(value);
    return out;
}

// Literals, then a copy of ``match`` bytes from ``offset`` bytes before; match 0: the block's end.
inline uint8_t* sequence(uint8_t* out, const uint8_t* from, int literals, int match, int offset) {
    const int copied = match ? match - 4 : 0;
    *out++ = static_cast<uint8_t>((literals < 15 ? literals : 15) << 4 | (copied < 15 ? copied : 15));
    if (literals >= 15) out = length(out, literals);
    std::memcpy(out, from, static_cast<size_t>(literals));
    out += literals;
    if (!match) return out;
    *out++ = static_cast<uint8_t>(offset);
    *out++ = static_cast<uint8_t>(offset >> 8);
    return copied >= 15 ? length(out, copied) : out;
}
}  // namespace fst_lz4

inline int LZ4_compress_default(const char* source, char* target, int size, int capacity) {
    if (capacity < LZ4_compressBound(size)) return 0;
    const uint8_t* in = reinterpret_cast<const uint8_t*>(source);
    uint8_t* out = reinterpret_cast<uint8_t*>(target);
    static thread_local int32_t last[1 << 12];
    std::memset(last, 0xff, sizeof last);
    int done = 0;
    // The format: the last 5 bytes are literals, and no copy begins in the last 12.
    for (int at = 0; at < size - 12;) {
        int32_t& place = last[fst_lz4::word(in + at) * 2654435761u >> 20];
        const int before = place;
        place = at;
        if (before < 0 || at - before > 65535 || fst_lz4::word(in + before) != fst_lz4::word(in + at)) {
            ++at;
            continue;
        }
        int match = 4;
        while (at + match < size - 5 && in[before + match] == in[at + match]) ++match;
        out = fst_lz4::sequence(out, in + done, at - done, match, at - before);
        at += match;
        done = at;
    }
    out = fst_lz4::sequence(out, in + done, size - done, 0, 0);
    return static_cast<int>(out - reinterpret_cast<uint8_t*>(target));
}

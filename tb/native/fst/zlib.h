// Streams in the format of zlib, for Verilator's writer of FST files: no library is needed.
//
// Every byte is stored. Where that is longer, as it is, the writer keeps the bytes as they are.
#pragma once
#include <cstdint>
#include <cstring>

typedef unsigned char Bytef;
typedef unsigned long uLong;
typedef unsigned long uLongf;
enum { Z_OK = 0, Z_BUF_ERROR = -5 };

inline uLong compressBound(uLong size) { return size + 5 * (size / 65535 + 1) + 6; }

inline int compress2(Bytef* target, uLongf* length, const Bytef* source, uLong size, int) {
    if (*length < compressBound(size)) return Z_BUF_ERROR;
    Bytef* out = target;
    *out++ = 0x78;
    *out++ = 0x01;
    uint32_t low = 1, high = 0;  // Adler-32
    uLong at = 0;
    do {
        const uLong count = size - at < 65535 ? size - at : 65535;
        *out++ = at + count == size;  // the last block
        *out++ = static_cast<Bytef>(count);
        *out++ = static_cast<Bytef>(count >> 8);
        *out++ = static_cast<Bytef>(~count);
        *out++ = static_cast<Bytef>(~count >> 8);
        std::memcpy(out, source + at, count);
        out += count;
        for (uLong n = at; n < at + count; ++n) {
            low = (low + source[n]) % 65521;
            high = (high + low) % 65521;
        }
        at += count;
    } while (at < size);
    for (int shift = 24; shift >= 0; shift -= 8) {
        *out++ = static_cast<Bytef>((high << 16 | low) >> shift);
    }
    *length = static_cast<uLongf>(out - target);
    return Z_OK;
}

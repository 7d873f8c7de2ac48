// What every native testbench shares: fields of ports, random numbers, a log in one binary stream.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <verilated.h>

// Where a field lies in a payload; hdl_ports.h, which is generated, has one for each field.
struct Field {
    unsigned at, bits;
};

inline uint64_t mask(unsigned bits) { return bits >= 64 ? ~0ULL : (1ULL << bits) - 1; }

// Ports of up to 64 bits are integers, wider ones VlWide.
template <class T> inline uint64_t get(const T& port, Field field) {
    return (static_cast<uint64_t>(port) >> field.at) & mask(field.bits);
}
template <std::size_t N> inline uint64_t get(const VlWide<N>& port, Field field) {
    const EData* words = port.data();
    uint64_t value = 0;
    for (unsigned have = 0, at = field.at; have < field.bits;) {
        const unsigned take = std::min(32 - at % 32, field.bits - have);
        value |= ((words[at / 32] >> at % 32) & mask(take)) << have;
        have += take, at += take;
    }
    return value;
}
template <class T> inline void put(T& port, Field field, uint64_t value) {
    const uint64_t where = mask(field.bits) << field.at;
    port = static_cast<T>((port & ~where) | ((value << field.at) & where));
}
template <std::size_t N> inline void put(VlWide<N>& port, Field field, uint64_t value) {
    EData* words = port.data();
    for (unsigned done = 0, at = field.at; done < field.bits;) {
        const unsigned take = std::min(32 - at % 32, field.bits - done);
        const EData where = static_cast<EData>(mask(take)) << at % 32;
        const EData part = static_cast<EData>((value >> done) & mask(take)) << at % 32;
        words[at / 32] = (words[at / 32] & ~where) | part;
        done += take, at += take;
    }
}

// Bytes of a field that begins anywhere and is a whole number of bytes long.
template <class T> inline void get_bytes(const T& port, Field field, uint8_t* bytes) {
    for (unsigned done = 0; done < field.bits; done += 8)
        *bytes++ = static_cast<uint8_t>(get(port, {field.at + done, 8}));
}
template <class T> inline void put_bytes(T& port, Field field, const uint8_t* bytes) {
    for (unsigned done = 0; done < field.bits; done += 8)
        put(port, {field.at + done, 8}, *bytes++);
}

inline uint64_t splitmix(uint64_t x) {
    x += 0x9E3779B97F4A7C15ULL;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
}

class Random {
    uint64_t state;

  public:
    explicit Random(uint64_t seed) : state(splitmix(seed) | 1) {}
    uint64_t next() {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        return state * 0x2545F4914F6CDD1DULL;
    }
    uint32_t below(uint32_t n) { return static_cast<uint32_t>((next() >> 32) * n >> 32); }
    uint32_t within(uint32_t low, uint32_t high) { return low + below(high - low + 1); }
    bool chance(double p) { return (next() >> 11) * 0x1p-53 < p; }
};

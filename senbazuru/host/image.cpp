#include "image.h"

#include <cstring>

namespace szr {

namespace {

constexpr uint32_t MAGIC = 0x49485A53, VERSION = 1;
constexpr unsigned HEADER_WORDS = 16, ENTRY_WORDS = 4;
constexpr uint32_t MOST = 1 << 20;  // of every size: products of two fit 64 bits

// The CRC-32 of zlib.
uint32_t crc32(const uint8_t* bytes, size_t size) {
    uint32_t crc = ~0u;
    for (size_t n = 0; n < size; n++) {
        crc ^= bytes[n];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

// Words of a part of the image, and how many are left.
class Words {
    const std::vector<uint8_t>& bytes;
    size_t at;

  public:
    explicit Words(const std::vector<uint8_t>& bytes, size_t at = 0) : bytes(bytes), at(at) {}
    bool have(uint64_t count) const { return count <= (bytes.size() - at) / 4; }
    uint32_t next() {
        uint32_t word;
        memcpy(&word, bytes.data() + at, 4);
        at += 4;
        return word;
    }
    bool take(std::vector<uint32_t>& to, uint64_t count) {
        if (!have(count)) return false;
        for (to.reserve(count); to.size() < count;) to.push_back(next());
        return true;
    }
};

}  // namespace

bool Image::read(const void* from, size_t size) {
    if (size < 4 * HEADER_WORDS) return false;
    const auto* first = static_cast<const uint8_t*>(from);
    bytes.assign(first, first + size);
    Words words(bytes);
    const bool known = words.next() == MAGIC && words.next() == VERSION && words.next() == size;
    if (!known || words.next() != crc32(first + 16, size - 16)) return false;
    facts = {words.next(), words.next(), words.next(), words.next(), words.next(), words.next(), 0};
    layers = words.next(), row = words.next();
    const uint32_t count = words.next();
    facts.forks = words.next() & 1;
    for (unsigned n = 14; n < HEADER_WORDS; n++) words.next();
    for (uint32_t each : {facts.vocabulary, facts.context, facts.places, facts.sequences, layers})
        if (!each || each > MOST) return false;
    if (facts.places > 256 || facts.sequences > 256) return false;  // fields of BATCH
    if (!words.take(thresholds, 4ull * layers)) return false;
    if (!words.take(pages, facts.context + 1ull) || !words.have(uint64_t(ENTRY_WORDS) * count))
        return false;
    for (uint32_t n = 0; n < count; n++) {
        const uint32_t pair = words.next();
        Program made{pair & 0xFFFF, pair >> 16, 0, 0, 0};
        made.at = words.next(), made.bytes = words.next(), made.lane_cycles = words.next();
        const bool fits = made.at <= size && made.bytes <= size - made.at;
        if (!fits || made.bytes % ROW_BYTES || made.choosing > made.tokens) return false;
        programs.push_back(made);
    }
    return find(1, 0) >= 0 && find(1, 1) >= 0;  // every step can be made of these
}

int Image::find(uint32_t tokens, uint32_t choosing) const {
    for (size_t n = 0; n < programs.size(); n++)
        if (programs[n].tokens == tokens && programs[n].choosing == choosing) return int(n);
    return -1;
}

}  // namespace szr

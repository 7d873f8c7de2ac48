// A Verilated chip as a backend of senbazuru.h.
#pragma once
#include "chip.h"
#include "senbazuru.h"

struct Backed : Chip {
    std::string why;  // the line of the last error

    using Chip::Chip;
    // Before a register is used again. Every use takes cycles, so nothing is due.
    virtual void waits() {}
};

// No exception leaves these functions.
namespace backed {

template <class Function> int guarded(void* chip, Function function) {
    auto& backed = *static_cast<Backed*>(chip);
    backed.enter();
    try {
        return function(backed);
    } catch (const std::exception& error) {
        backed.why = error.what();
        return SZR_CHIP;
    }
}

inline int write(void* chip, uint32_t offset, uint32_t word) {
    return guarded(chip, [&](Backed& c) { return c.write(offset, word) ? SZR_OK : SZR_NOTHING; });
}
inline int read(void* chip, uint32_t offset, uint32_t* word) {
    return guarded(chip, [&](Backed& c) { return c.read(offset, *word) ? SZR_OK : SZR_NOTHING; });
}
inline int write_data(void* chip, uint64_t address, const void* bytes, uint64_t size) {
    return guarded(chip, [&](Backed& c) {
        if (!c.has_room(address, size)) return SZR_NO_ROOM;
        c.write_data(address, bytes, size);
        return SZR_OK;
    });
}
inline int wait(void* chip) {
    return guarded(chip, [](Backed& c) {
        c.waits();
        if (!c.is_silent()) return SZR_OK;
        c.why = "no transfer for " + std::to_string(SILENCE) + " cycles";
        return SZR_SILENT;
    });
}
inline int reset(void* chip) {
    return guarded(chip, [](Backed& c) {
        c.reset();
        return SZR_OK;
    });
}
inline uint64_t cycle(void* chip) { return static_cast<Backed*>(chip)->clock.cycle; }

}  // namespace backed

inline szr_backend backend_of(Backed& chip) {
    using namespace backed;
    return {&chip, write, read, write_data, wait, reset, cycle};
}

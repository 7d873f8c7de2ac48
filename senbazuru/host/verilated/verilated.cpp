// The functions of verilated.h.
#include "verilated.h"

#include "backend.h"

namespace {

Backed& of(const szr_backend* backend) { return *static_cast<Backed*>(backend->chip); }

}  // namespace

int szr_verilated_open(const char* folder, uint32_t latency, szr_backend* backend, char* why,
                       size_t room) {
    if (!folder || !backend || !why || !room) return SZR_BAD_ARGUMENT;
    *backend = {};
    *why = 0;
    try {
        *backend = backend_of(*new Backed(folder, latency));
    } catch (const std::exception& error) {
        strncat(why, error.what(), room - 1);
        return SZR_CHIP;
    }
    return SZR_OK;
}

void szr_verilated_close(szr_backend* backend) {
    if (!backend || !backend->chip) return;
    delete &of(backend);
    *backend = {};
}

int szr_verilated_set_error(szr_backend* backend, uint32_t port, uint64_t word, int is_set) {
    if (!backend || !backend->chip) return SZR_BAD_ARGUMENT;
    return backed::guarded(backend->chip, [&](Backed& chip) {
        chip.set_error(port, word, is_set);
        return SZR_OK;
    });
}

int szr_verilated_watch(szr_backend* backend, uint32_t engine, int is_on) {
    if (!backend || !backend->chip) return SZR_BAD_ARGUMENT;
    return backed::guarded(backend->chip, [&](Backed& chip) {
        chip.watch(engine, is_on);
        return SZR_OK;
    });
}

int szr_verilated_accesses(szr_backend* backend, szr_access* accesses, size_t room, size_t* count) {
    if (!backend || !backend->chip || !count || (room && !accesses)) return SZR_BAD_ARGUMENT;
    auto& kept = of(backend).accesses;
    *count = std::min(room, kept.size());
    for (size_t n = 0; n < *count; n++) {
        const Access& each = kept[n];
        accesses[n] = {each.cycle, each.address, each.strobe, each.is_write, each.is_error};
    }
    kept.erase(kept.begin(), kept.begin() + long(*count));
    return SZR_OK;
}

int szr_verilated_pages(szr_backend* backend, uint32_t engine, uint64_t address, void* bytes,
                        size_t size, int is_write) {
    if (!backend || !backend->chip || (size && !bytes)) return SZR_BAD_ARGUMENT;
    return backed::guarded(backend->chip, [&](Backed& chip) {
        uint8_t* at = chip.bytes_of_pages(engine, address, size);
        memcpy(is_write ? at : bytes, is_write ? bytes : at, size);
        return SZR_OK;
    });
}

const char* szr_verilated_why(const szr_backend* backend) {
    return backend && backend->chip ? of(backend).why.c_str() : "";
}

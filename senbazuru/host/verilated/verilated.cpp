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

const char* szr_verilated_why(const szr_backend* backend) {
    return backend && backend->chip ? of(backend).why.c_str() : "";
}

// Names of errors and of the chip's results.
#include <algorithm>
#include <iterator>
#include <string>

#include "registers.h"
#include "senbazuru.h"

namespace {

// Words of a status, the lowest bit first.
template <size_t N> std::string names_of(uint32_t status, const char* const (&names)[N]) {
    std::string text;
    for (size_t bit = 0; bit < N; bit++)
        if (status >> bit & 1) text += (text.empty() ? "" : "|") + std::string(names[bit]);
    return text.empty() ? "OK" : text;
}

}  // namespace

const char* szr_error_name(int error) {
    static const char* const names[] = {
        "SZR_OK", "SZR_NO_MEMORY", "SZR_BAD_ARGUMENT", "SZR_BAD_IMAGE", "SZR_EMPTY_PROMPT",
        "SZR_TOO_LONG", "SZR_BAD_TOKEN", "SZR_BAD_MAX_TOKENS", "SZR_BAD_SAMPLING", "SZR_TOO_MANY",
        "SZR_UNKNOWN", "SZR_ENDED", "SZR_ACTIVE", "SZR_BUSY", "SZR_NOTHING", "SZR_SILENT",
        "SZR_CHIP", "SZR_NO_ROOM", "SZR_NO_FORKS", "SZR_NOT_A_PREFIX",
    };
    const bool is_known = error >= 0 && size_t(error) < std::size(names);
    return is_known ? names[error] : "unknown error";
}

int szr_result_text(uint32_t result, char* text, size_t room) try {
    if (!text || !room) return SZR_BAD_ARGUMENT;
    const unsigned unit = szr::unit_of(result), status = szr::status_of(result);
    std::string said;
    if (unit == szr::RUN_UNIT) {
        said = "the run: " + names_of(status, szr::RUN_STATUS);
    } else {
        const char* name = unit < std::size(szr::UNITS) ? szr::UNITS[unit] : "no unit";
        said = "command " + std::to_string(szr::tag_of(result)) + " (" + name + "): " +
               names_of(status, szr::COMMAND_STATUS);
    }
    said.resize(std::min(said.size(), room - 1));
    *std::copy(said.begin(), said.end(), text) = 0;
    return SZR_OK;
} catch (...) {
    return SZR_NO_MEMORY;
}

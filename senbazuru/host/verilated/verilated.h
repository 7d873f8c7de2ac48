/* A Verilated accelerator as a chip of senbazuru.h. */
#ifndef SENBAZURU_VERILATED_H
#define SENBAZURU_VERILATED_H

#include "senbazuru.h"

#ifdef __cplusplus
extern "C" {
#endif

/* folder: of golden.llm.pack --all; its files are mapped and stay as they are. latency: of all
 * memories, in cycles. SZR_CHIP: `why` has one line, ended by a zero byte. */
int szr_verilated_open(const char *folder, uint32_t latency, szr_backend *backend, char *why,
                       size_t room);
void szr_verilated_close(szr_backend *backend);
/* Reads of a word of a port's memory give SLVERR, or no longer. Ports are those of the weights,
 * then the data memory, each engine's reads of pages, and each one's writes. */
int szr_verilated_set_error(szr_backend *backend, uint32_t port, uint64_t word, int is_set);
/* A word that the pages' memory of an engine gave or took. strobe: a bit for each byte written. */
typedef struct {
    uint64_t cycle;
    uint64_t address;
    uint64_t strobe;
    uint32_t is_write;
    uint32_t is_error;
} szr_access;

/* Keeps the accesses to the pages of an engine from now on, or of none any more. */
int szr_verilated_watch(szr_backend *backend, uint32_t engine, int is_on);
/* Gives the oldest of them, up to `room`, in the order of cycles, and forgets these. */
int szr_verilated_accesses(szr_backend *backend, szr_access *accesses, size_t room, size_t *count);
/* Reads or writes bytes of an engine's pages past the chip. */
int szr_verilated_pages(szr_backend *backend, uint32_t engine, uint64_t address, void *bytes,
                        size_t size, int is_write);
/* The line of the last SZR_CHIP or SZR_SILENT; "" where there was none. */
const char *szr_verilated_why(const szr_backend *backend);

#ifdef __cplusplus
}
#endif

#endif

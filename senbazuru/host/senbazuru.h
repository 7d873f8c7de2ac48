/* The host of a KLLM accelerator as a library: many requests share the steps of one chip.
 *
 * No function ends the process, and none throws. Each gives an enum szr_error. One thread calls
 * szr_step; others may call every other function at the same time, szr_close excepted. None but
 * szr_step, szr_reset and szr_close waits for the chip. docs/host-library.md describes the use.
 */
#ifndef SENBAZURU_H
#define SENBAZURU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum szr_error {
    SZR_OK = 0,
    SZR_NO_MEMORY = 1,      /* of this process */
    SZR_BAD_ARGUMENT = 2,   /* a pointer is missing, or a field has no such value */
    SZR_BAD_IMAGE = 3,      /* not an image of golden.kllm.model.host_image, or a damaged one */
    SZR_EMPTY_PROMPT = 4,   /* submit: no token */
    SZR_TOO_LONG = 5,       /* submit: the prompt leaves no token of the context; prefix: two */
    SZR_BAD_TOKEN = 6,      /* submit: a token or a stop beyond the vocabulary */
    SZR_BAD_MAX_TOKENS = 7, /* submit: max_tokens is 0 */
    SZR_BAD_SAMPLING = 8,   /* submit: temperature or top_k that the chip does not draw with */
    SZR_TOO_MANY = 9,       /* submit: as many requests as the options permit; prefix: that, or
                               no sequence would be left for others */
    SZR_UNKNOWN = 10,       /* no request has that number: never given, or freed */
    SZR_ENDED = 11,         /* cancel: the request has ended; submit: its prefix has */
    SZR_ACTIVE = 12,        /* free: the request has not ended */
    SZR_BUSY = 13,          /* step, reset: another thread is in one */
    SZR_NOTHING = 14,       /* of a backend: the chip refused the word, or has none; repeat it */
    SZR_SILENT = 15,        /* the chip gives no answer; szr_reset goes on */
    SZR_CHIP = 16,          /* the chip or its backend breaks a rule; szr_reset goes on */
    SZR_NO_ROOM = 17,       /* the data memory has no room for a program */
    SZR_NO_FORKS = 18,      /* prefix, submit: the sequences of this chip share no pages */
    SZR_NOT_A_PREFIX = 19   /* submit: the request that it begins with is an ordinary one */
};

enum szr_policy {
    SZR_FIRST_COME = 0, /* in the order of their coming */
    SZR_SHORTEST = 1,   /* the shortest prompt first */
    SZR_FAIR = 2        /* of the user who was given the fewest places */
};

enum szr_kind {
    SZR_TOKEN = 1, /* a token was chosen */
    SZR_END = 2    /* the last event of a request */
};

enum szr_reason {
    SZR_RUNS = 0,      /* it has not ended */
    SZR_STOP = 1,      /* the last token is one of the stops */
    SZR_LENGTH = 2,    /* max_tokens, or the context, is reached */
    SZR_CANCELLED = 3, /* by szr_cancel */
    SZR_FAULT = 4      /* its step fails where it is alone too; the event has the chip's word */
};

/* A chip. The first argument of each function is `chip`. Each but `cycle` gives an error. */
typedef struct {
    void *chip;
    /* A register; SZR_NOTHING: the answer was SLVERR. */
    int (*write)(void *chip, uint32_t offset, uint32_t word);
    int (*read)(void *chip, uint32_t offset, uint32_t *word);
    /* Bytes of the data memory, from a byte address on. */
    int (*write_data)(void *chip, uint64_t address, const void *bytes, uint64_t size);
    /* Before a register is written or read again. SZR_SILENT: nothing has come for too long. */
    int (*wait)(void *chip);
    /* Resets the accelerator; its memories keep what they hold. */
    int (*reset)(void *chip);
    /* Cycles of the chip's clock, or 0. */
    uint64_t (*cycle)(void *chip);
} szr_backend;

typedef struct {
    uint32_t policy;    /* enum szr_policy */
    uint32_t places;    /* most tokens of a step; 0: all places of the chip */
    uint32_t sequences; /* most open at a time; 0: all of the chip */
    uint32_t requests;  /* most that are not freed; 0: 1024 */
} szr_options;

typedef struct {
    uint32_t vocabulary; /* tokens are 0..vocabulary - 1 */
    uint32_t context;    /* most tokens of a request, the prompt's and the chosen ones */
    uint32_t places;
    uint32_t sequences;
    uint32_t top;   /* most logits of which one is drawn */
    uint32_t pages; /* of one engine */
    uint32_t forks; /* 1: requests may begin with a prefix */
} szr_facts;

typedef struct {
    const uint32_t *prompt;
    size_t prompt_tokens;
    const uint32_t *stops; /* a request ends with any of them */
    size_t stop_tokens;
    uint32_t max_tokens; /* chosen tokens */
    uint32_t top_k;      /* without effect where temperature is 0 */
    double temperature;  /* 0: the largest logit; at most 100 */
    uint32_t seed;
    uint32_t user; /* whose share of the places counts */
    uint64_t prefix; /* that the prompt follows: a number of szr_prefix; 0: none */
} szr_prompt;

typedef struct {
    uint64_t request;
    uint32_t kind;   /* enum szr_kind */
    uint32_t token;  /* of SZR_TOKEN */
    uint32_t reason; /* enum szr_reason, of SZR_END */
    uint32_t fault;  /* of SZR_FAULT: the chip's word RESULT */
} szr_event;

typedef struct {
    uint32_t prompt_tokens; /* those of its prefix too */
    uint32_t chosen_tokens;
    uint32_t cached_tokens; /* whose K and V are in the pages */
    uint32_t reason;        /* enum szr_reason */
    uint32_t steps;         /* in which it had a place */
    uint32_t repeats;       /* how often its tokens were taken through again */
    int32_t sequence;       /* -1: it has none */
    uint32_t shared_tokens; /* cached tokens that it has from its prefix */
} szr_usage;

typedef struct {
    uint64_t cycles;      /* of the chip, from the first word of the batch to the last id */
    uint64_t lane_cycles; /* of its program, if every lane formed products in each cycle */
    uint32_t tokens;      /* places that had one; 0: there was nothing to do */
    uint32_t chosen;      /* of them, those that chose the next token */
    uint32_t sequences;   /* of them */
    uint32_t written;     /* words of registers */
    uint32_t result;      /* the chip's word RESULT */
    uint32_t failed;      /* 1: its requests are taken through again */
    /* Of each unit those in which it was at work: LOAD, QUANTIZE, MATMUL, FUNCTION, READ, CACHE. The
     * chip counts them. All are 0 where it has no counters. */
    uint32_t unit_cycles[6];
} szr_report;

typedef struct {
    uint64_t steps;
    uint64_t failed_steps;
    uint64_t tokens; /* places that had one, in all steps */
    uint64_t chosen_tokens;
    uint64_t cycles;
    uint32_t requests; /* that are not freed */
    uint32_t waiting;  /* that have no sequence yet */
    uint32_t running;  /* that have one, and tokens left */
    uint32_t leaving;  /* sequences of ended requests, which the next step frees */
    uint32_t limit;    /* most sequences at present; fewer than all after a want of pages */
    uint32_t pages_most; /* that the open sequences can have, of each engine */
    uint32_t programs; /* in the data memory */
    uint32_t broken;   /* enum szr_error that szr_step gives until szr_reset */
    uint32_t prefixes; /* that are cached: requests can begin with them at once */
    uint32_t forks;    /* requests that began with a prefix, repeats too */
    szr_report last;
} szr_stats;

typedef struct {
    uint64_t request; /* 0: the sequence is free */
    uint32_t user;
    uint32_t tokens; /* of the request at present, the chosen ones too */
    uint32_t cached_tokens;
    uint32_t pages_most; /* without those that it has from its prefix */
    uint32_t shared_tokens;
} szr_slot;

typedef struct szr_engine szr_engine;

/* image: all that golden.kllm.model.host_image writes; the bytes are copied. options: NULL: all 0.
 * The accelerator has just been reset, and its memories have the model. */
int szr_open(const szr_backend *backend, const void *image, size_t bytes,
             const szr_options *options, szr_engine **engine);
/* The sequences stay open in the chip: reset it before it is opened again. NULL is permitted. */
void szr_close(szr_engine *engine);
int szr_facts_of(szr_engine *engine, szr_facts *facts);

/* The number of a request, from 1 on; no number is given twice. */
int szr_submit(szr_engine *engine, const szr_prompt *prompt, uint64_t *request);
/* A request that chooses no token. Its K and V stay in the pages until szr_cancel. Others, which
 * name it, begin with them. They have the tokens that they would have with the whole prompt. */
int szr_prefix(szr_engine *engine, const uint32_t *tokens, size_t count, uint32_t user,
               uint64_t *request);
/* Its END comes at once, and no token after it. The next step frees its pages. */
int szr_cancel(szr_engine *engine, uint64_t request);
/* Forgets an ended request, and those of its events that nobody took. */
int szr_free(szr_engine *engine, uint64_t request);
int szr_usage_of(szr_engine *engine, uint64_t request, szr_usage *usage);
/* The oldest events of all requests, `room` at most. */
int szr_poll(szr_engine *engine, szr_event *events, size_t room, size_t *count);

/* One step of the chip. report: NULL is permitted. */
int szr_step(szr_engine *engine, szr_report *report);
/* Resets the chip. Every request that has not ended is taken through again. */
int szr_reset(szr_engine *engine);

int szr_stats_of(szr_engine *engine, szr_stats *stats);
/* Of each sequence, in order, `room` at most. */
int szr_slots_of(szr_engine *engine, szr_slot *slots, size_t room, size_t *count);

/* The name of an error, such as "SZR_TOO_LONG". */
const char *szr_error_name(int error);
/* The text of a word RESULT, such as "command 12 (CACHE): BUS_ERROR", ended by a zero byte. */
int szr_result_text(uint32_t result, char *text, size_t room);

#ifdef __cplusplus
}
#endif

#endif

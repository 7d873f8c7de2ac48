// The functions of senbazuru.h: locks and errors around the scheduler and the device.
#include <mutex>
#include <new>

#include "scheduler.h"

// state: of all that other threads read and write. chip: of the one that uses the chip, which has
// `state` only before and after.
struct szr_engine {
    szr::Image image;
    szr::Device device;
    szr::Scheduler scheduler;
    std::mutex state, chip;
    int broken = SZR_OK;

    szr_engine(const szr_backend& backend, szr::Image&& read, const szr_options& options)
        : image(std::move(read)), device(backend, image), scheduler(image, options) {}
};

namespace {

using szr::Shared;
using Lock = std::lock_guard<std::mutex>;

// No exception leaves the library.
template <class Function> int guarded(Function function) {
    try {
        return function();
    } catch (const std::bad_alloc&) {
        return SZR_NO_MEMORY;
    } catch (...) {
        return SZR_CHIP;
    }
}

template <class Function> int with_state(szr_engine* engine, Function function) {
    if (!engine) return SZR_BAD_ARGUMENT;
    return guarded([&] {
        const Lock lock(engine->state);
        return function(engine->scheduler);
    });
}

bool is_whole(const szr_backend* backend) {
    return backend && backend->write && backend->read && backend->write_data && backend->wait &&
           backend->reset && backend->cycle;
}

// The sequences of requests that have ended, or go through again.
int leave(szr_engine& engine) {
    std::vector<uint32_t> leaving;
    {
        const Lock lock(engine.state);
        leaving = engine.scheduler.leaving();
    }
    for (uint32_t sequence : leaving) {
        if (int error = engine.device.free(sequence)) return error;
        const Lock lock(engine.state);
        engine.scheduler.left(sequence);
    }
    return SZR_OK;
}

int join(szr_engine& engine) {
    std::vector<Shared> joining;
    {
        const Lock lock(engine.state);
        joining = engine.scheduler.joining();
    }
    for (const Shared& request : joining) {
        int parent;
        {
            const Lock lock(engine.state);
            parent = engine.scheduler.parent_of(request);
        }
        uint32_t sequence, status = 0;
        const auto tokens = parent < 0 ? 0 : uint32_t(request->prefix->tokens.size());
        const int error = parent < 0
                              ? engine.device.open(sequence)
                              : engine.device.fork(uint32_t(parent), tokens, sequence, status);
        if (error) return error;
        const Lock lock(engine.state);
        if (status) {
            engine.scheduler.refused(request, status);
            break;  // others would meet the same, or have to wait for it
        }
        if (!engine.scheduler.joined(request, sequence, parent >= 0)) return SZR_CHIP;
    }
    return SZR_OK;
}

int step(szr_engine& engine, szr_report& report) {
    int error = leave(engine);
    if (!error) error = join(engine);
    if (error) return error;
    szr::Plan plan;
    {
        const Lock lock(engine.state);
        plan = engine.scheduler.plan();
    }
    if (plan.places.empty()) return SZR_OK;
    szr::Step done;
    if ((error = engine.device.step(plan.places, plan.choosing, done))) return error;
    {
        const Lock lock(engine.state);
        engine.scheduler.complete(plan, done);
        engine.scheduler.stats.programs = engine.device.programs();
        report = engine.scheduler.stats.last;
    }
    return leave(engine);
}

}  // namespace

int szr_open(const szr_backend* backend, const void* image, size_t bytes,
             const szr_options* options, szr_engine** engine) {
    if (!is_whole(backend) || !image || !engine) return SZR_BAD_ARGUMENT;
    *engine = nullptr;
    return guarded([&] {
        szr::Image read;
        if (!read.read(image, bytes)) return SZR_BAD_IMAGE;
        const szr_options wanted = options ? *options : szr_options{};
        if (!szr::Scheduler::is_valid(read, wanted)) return SZR_BAD_ARGUMENT;
        auto made = std::make_unique<szr_engine>(*backend, std::move(read), wanted);
        if (int error = made->device.begin()) return szr_error(error);
        *engine = made.release();
        return SZR_OK;
    });
}

void szr_close(szr_engine* engine) { delete engine; }

int szr_facts_of(szr_engine* engine, szr_facts* facts) {
    if (!engine || !facts) return SZR_BAD_ARGUMENT;
    *facts = engine->image.facts;
    return SZR_OK;
}

int szr_submit(szr_engine* engine, const szr_prompt* prompt, uint64_t* request) {
    if (!prompt || !request) return SZR_BAD_ARGUMENT;
    return with_state(engine, [&](auto& scheduler) { return scheduler.submit(*prompt, *request); });
}

int szr_prefix(szr_engine* engine, const uint32_t* tokens, size_t count, uint32_t user,
               uint64_t* request) {
    if (!request) return SZR_BAD_ARGUMENT;
    return with_state(engine, [&](auto& scheduler) {
        return scheduler.prefix(tokens, count, user, *request);
    });
}

int szr_cancel(szr_engine* engine, uint64_t request) {
    return with_state(engine, [&](auto& scheduler) { return scheduler.cancel(request); });
}

int szr_free(szr_engine* engine, uint64_t request) {
    return with_state(engine, [&](auto& scheduler) { return scheduler.free(request); });
}

int szr_usage_of(szr_engine* engine, uint64_t request, szr_usage* usage) {
    if (!usage) return SZR_BAD_ARGUMENT;
    return with_state(engine, [&](auto& scheduler) { return scheduler.usage(request, *usage); });
}

int szr_poll(szr_engine* engine, szr_event* events, size_t room, size_t* count) {
    if (!count || (room && !events)) return SZR_BAD_ARGUMENT;
    return with_state(engine, [&](auto& scheduler) {
        *count = scheduler.poll(events, room);
        return SZR_OK;
    });
}

int szr_step(szr_engine* engine, szr_report* report) {
    if (!engine) return SZR_BAD_ARGUMENT;
    szr_report made{};
    if (report) *report = made;
    const std::unique_lock<std::mutex> chip(engine->chip, std::try_to_lock);
    if (!chip) return SZR_BUSY;
    if (engine->broken) return engine->broken;
    const int error = guarded([&] { return step(*engine, made); });
    if (report) *report = made;
    const Lock lock(engine->state);
    return engine->broken = error;
}

int szr_reset(szr_engine* engine) {
    if (!engine) return SZR_BAD_ARGUMENT;
    const std::unique_lock<std::mutex> chip(engine->chip, std::try_to_lock);
    if (!chip) return SZR_BUSY;
    const int error = guarded([&] { return engine->device.reset(); });
    const Lock lock(engine->state);
    engine->scheduler.restart();
    return engine->broken = error;
}

int szr_stats_of(szr_engine* engine, szr_stats* stats) {
    if (!stats) return SZR_BAD_ARGUMENT;
    return with_state(engine, [&](auto& scheduler) {
        scheduler.count(*stats);
        stats->broken = uint32_t(engine->broken);
        return SZR_OK;
    });
}

int szr_slots_of(szr_engine* engine, szr_slot* slots, size_t room, size_t* count) {
    if (!count || (room && !slots)) return SZR_BAD_ARGUMENT;
    return with_state(engine, [&](auto& scheduler) {
        *count = std::min(room, scheduler.slot_count());
        for (size_t n = 0; n < *count; n++) slots[n] = scheduler.slot(n);
        return SZR_OK;
    });
}

"""Episodes of engines that fetch a matrix from memory: those of vqllm and of qet."""

from collections.abc import Mapping, Sequence

from hdl.kit.episodes import Episode, Fault, Memory, Vectors
from hdl.kit.words import plain

_PAGE = 4096  # bytes after the images: an engine may read on to the end of a burst


def _image(jobs: Sequence[Mapping], low: int, word_bytes: int) -> dict[int, int]:
    """Number of each word -> word, of the images of all jobs."""
    found = {}
    for job in jobs:
        content = bytes.fromhex(job["memory"])
        content += bytes(-len(content) % word_bytes)
        first = (job["base"] - low) // word_bytes
        for n in range(len(content) // word_bytes):
            part = content[n * word_bytes : (n + 1) * word_bytes]
            found[first + n] = int.from_bytes(part, "little")
    return found


def _episode(job: Mapping) -> Episode:
    """One job: its vectors go in, its rows and its status come out."""
    words = {name: job[name] for name in ("x", "job", "y", "status")}
    masks = {"y": job["masks"], "status": job["status_mask"]}
    faults = {}
    covers = "a sound matrix"
    for low, high, response in job["refused"]:
        faults["axi"] = Fault(low=low, high=high, response=response)
        covers = "fault: memory refuses a word"
    if not faults and job.get("is_faulty"):
        covers = "fault: a damaged image or job"
    return plain(covers, words, masks=masks, faults=faults)


def engine_vectors(jobs: Sequence[Mapping], data_bits: int) -> Vectors:
    """Vectors of ``jobs`` as ``params()`` of a job of the benches gives them.

    A job of which memory refuses words in two places is left out: an episode has one fault.
    """
    jobs = [job for job in jobs if len(job["refused"]) < 2]
    word_bytes = data_bits // 8
    low = min(job["base"] for job in jobs) // _PAGE * _PAGE
    high = max(job["base"] + len(job["memory"]) // 2 for job in jobs) + 2 * _PAGE
    memory = Memory(
        bus="axi", low=low, words=(high - low) // word_bytes,
        image=_image(jobs, low, word_bytes),
    )  # fmt: skip
    return Vectors(episodes=[_episode(job) for job in jobs], memories=[memory])

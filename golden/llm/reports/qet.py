"""QET in a model: ``python -m golden.llm.reports.qet --text NAME=FILE``.

Perplexity of SmolLM2 with weights, K and V after QET, next to other methods at counted bits. Rows
run in parts, each part once. QET's paper measures no model.
"""

from golden import command
from golden.llm.eval.accuracy.arguments import PAGE
from golden.llm.reports.counted import Counted
from golden.llm.reports.million.tables import PLAIN, Entry, Table

__all__ = ["PAGE", "REPORT", "TABLES", "main"]

_PQ = "levels=0,stages=1,entry_bits=0"


def _weights(bits: int, *others: Entry) -> tuple[Entry, ...]:
    return (
        Entry(f"qet-{bits}b", f"QET, {bits} bits"),
        Entry(f"qet-{bits}b:{_PQ}", f"product quantization, {bits} bits"),
        Entry(f"rtn-w{bits}a16", f"rounding, {bits} bits, a range for each row"),
        Entry(f"gptq-like-w{bits}a16", f"after GPTQ, {bits} bits, a channel's scale"),
        *others,
    )


TABLES = (
    Table(
        "qet_perplexity",
        (
            Entry(PLAIN, "FP32"),
            *_weights(8),
            *_weights(4, Entry("squeezellm-like-w4a16", "after SqueezeLLM, 4 bits")),
            *_weights(
                3,
                Entry("squeezellm-like-w3a16", "after SqueezeLLM, 3 bits"),
                Entry("aqlm3", "after AQLM, <8, 4096, 2>"),
                Entry("gptvq3", "after GPTVQ, <2, 64, 1>"),
            ),
            *_weights(
                2,
                Entry("squeezellm-like-w2a16", "after SqueezeLLM, 2 bits"),
                Entry("gptvq2", "after GPTVQ, <4, 256, 1>"),
                Entry("aqlm2x8", "after AQLM, <8, 256, 2>"),
            ),
        ),
        whole=True,
        seeds=True,
    ),
    Table(
        "qet_swaps",
        (
            Entry(PLAIN, "FP32"),
            Entry("qet-4b:levels=0", "no level"),
            Entry("qet-4b:levels=1", "1 level"),
            Entry("qet-4b:levels=2", "2 levels"),
            Entry("qet-4b", "3 levels"),
        ),
        whole=True,
        seeds=True,
    ),
    Table(
        "qet_shared",
        (
            Entry(PLAIN, "FP32"),
            Entry("qet-4b", "a matrix has its own codebooks"),
            Entry("qet-4b:together=2", "2 layers share them"),
            Entry("qet-4b:together=4", "4 layers share them"),
        ),
        whole=True,
        seeds=True,
    ),
    Table(
        "qet_kv",
        (
            Entry(PLAIN, "FP32"),
            Entry("kivi-like", "after KIVI, 4 bits"),
            Entry("kvquant-like", "after KVQuant, 4 bits"),
            Entry("rtn-kv4", "rounding, 4 bits, a range for each token"),
            Entry("million-4b", "MILLION, one pair of codebooks"),
            Entry("cq4", "after CQ, <2, 256, 1>"),
            Entry("qet-kv-4b", "QET, codebooks of other text"),
            Entry("qet-kv-4b:share=0.5", "the same, half the memory for each stage"),
            Entry("qet-kv-4b:levels=0", "the same without levels"),
            Entry("qet-kv-noncausal-4b", "QET, codebooks of the window: not causal"),
            Entry("qet-kv-noncausal-4b:levels=0", "not causal, without levels"),
        ),
        whole=True,
        seeds=True,
    ),
)
REPORT = Counted(
    "qet",
    "Run QET and other methods in parts, and write their sections of a page.",
    TABLES,
    {"qet_perplexity": "weights", "qet_swaps": "weights", "qet_shared": "weights", "qet_kv": "kv"},
)
main = REPORT.main


if __name__ == "__main__":
    command.run("golden.llm.reports.qet", main)

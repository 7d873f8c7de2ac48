"""VQ against element-wise methods: ``python -m golden.llm.reports.vqllm --text NAME=FILE``.

VQ-LLM, Figure 2, at counted bits of SmolLM2's matrices. Rows run in parts, each part once.
"""

from golden import command
from golden.llm.eval.accuracy.arguments import PAGE
from golden.llm.reports.counted import Counted
from golden.llm.reports.million.tables import PLAIN, Entry, Table

__all__ = ["PAGE", "REPORT", "TABLES", "main"]

TABLES = (
    Table(
        "vqllm_weights",
        (
            Entry(PLAIN, "FP32"),
            Entry("gptq-like-w4a16", "after GPTQ, 4 bits, a channel's scale"),
            Entry("squeezellm-like-w4a16", "after SqueezeLLM, 4 bits"),
            Entry("awq4:alpha=0,clip=false", "rounding, 4 bits, groups of 128"),
            Entry("awq4", "after AWQ, 4 bits, groups of 128"),
            Entry("qoq:activation_bits=16,kv_bits=16", "after QoQ, 4 bits, groups of 128"),
            Entry("qoq", "the same, inputs of 8 bits, K and V of 4"),
            Entry("quip4", "after QuiP#, two points of our E8P"),
            Entry("awq3", "after AWQ, 3 bits, groups of 128"),
            Entry("gptq-like-w3a16", "after GPTQ, 3 bits, a channel's scale"),
            Entry("gptq-like-w3a16:group=64", "after GPTQ, 3 bits, groups of 64"),
            Entry("squeezellm-like-w3a16", "after SqueezeLLM, 3 bits"),
            Entry("aqlm3", "after AQLM, <8, 4096, 2>"),
            Entry("aqlm3:feedback=true", "the same, with error feedback"),
            Entry("gptvq3", "after GPTVQ, <2, 64, 1>"),
            Entry("awq2:group=64", "after AWQ, 2 bits, groups of 64"),
            Entry("gptq-like-w2a16", "after GPTQ, 2 bits, a channel's scale"),
            Entry("gptq-like-w2a16:group=64", "after GPTQ, 2 bits, groups of 64"),
            Entry("squeezellm-like-w2a16", "after SqueezeLLM, 2 bits"),
            Entry("quip2", "after QuiP#, one point of our E8P"),
            Entry("gptvq2", "after GPTVQ, <4, 256, 1>"),
            Entry("aqlm2x8", "after AQLM, <8, 256, 2>"),
            Entry("aqlm2x8:feedback=true", "the same, with error feedback"),
        ),
        whole=True,
        seeds=True,
    ),
    Table(
        "vqllm_kv",
        (
            Entry(PLAIN, "FP32"),
            Entry("kivi-like", "after KIVI, 4 bits"),
            Entry("qoq:weight_bits=16,activation_bits=16", "after QoQ, 4 bits"),
            Entry("kvquant-like", "after KVQuant, 4 bits"),
            Entry("million-4b", "MILLION, one pair of codebooks"),
            Entry("cq4", "after CQ, <2, 256, 1>"),
            Entry("cq4:fisher=true", "the same, Fisher weights"),
            Entry("kivi-like:bits=2", "after KIVI, 2 bits"),
            Entry("kvquant-like:bits=2", "after KVQuant, 2 bits"),
            Entry("million-2b", "MILLION, one pair of codebooks"),
            Entry("cq2", "after CQ, <4, 256, 1>"),
            Entry("cq2:fisher=true", "the same, Fisher weights"),
        ),
        whole=True,
        seeds=True,
    ),
)
REPORT = Counted(
    "vqllm",
    "Run VQ and element-wise methods in parts, and write their sections of a page.",
    TABLES,
    {"vqllm_weights": "weights", "vqllm_kv": "kv"},
)
main = REPORT.main


if __name__ == "__main__":
    command.run("golden.llm.reports.vqllm", main)

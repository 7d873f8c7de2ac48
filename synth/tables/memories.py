"""RAMs of some blocks: CACTI next to the assumption of Table I, and published macros."""

from golden.markers import table
from golden.sram import ram
from hdl.back.verilog import convert
from hdl.registry import configuration, find
from synth.area import is_macro
from synth.memories import MACROS
from synth.tables.common import SRAM_UM2_PER_BIT, Tables

BLOCKS = (
    ("oaken_quant_engine", "lanes=16"),
    ("oaken_scale_buffer",),
    ("paging_page_table",),
    ("kllm_slot_memory",),
    ("kllm_weight_buffer",),
)


def memory_tables() -> dict[str, str]:
    """Sections ``memories`` and ``macros``."""
    rows = []
    for name, *assignments in BLOCKS:
        config = configuration(name, None, list(assignments))
        design = convert(find(name).component(config), name)
        for module in design.modules:
            if not is_macro(module.block):
                continue
            size = module.block.config.describe()
            words, bits = size["depth"], size["width"]
            ports = type(module.block).__qualname__.removeprefix("Memory").lower()
            found = ram(ports, words, bits)
            rows.append(
                (
                    " ".join([name, *assignments]),
                    f"{words} x {bits}",
                    ports,
                    f"{words * bits / 8192:.2f}",
                    f"{found.macros}",
                    f"{found.um2 / 1e6:.4f}",
                    f"{found.um2 / (words * bits):.2f}",
                    f"{found.read_pj:.2f}",
                    f"{found.write_pj:.2f}",
                    *(f"{words * bits * each / 1e6:.4f}" for each in SRAM_UM2_PER_BIT.values()),
                )
            )
    head = (
        "block", "words x bits", "ports", "KB", "macros", "CACTI, mm2", "um2 per bit",
        "read, pJ", "write, pJ", "low, mm2", "middle, mm2", "high, mm2",
    )  # fmt: skip
    macros = [
        (
            f"`{macro.name}`",
            macro.process,
            macro.ports,
            f"{macro.words} x {macro.bits}",
            f"{macro.um2:,.0f}",
            f"{macro.per_bit:.2f}",
            f"{macro.per_bit_28nm:.2f}",
            macro.source,
        )
        for macro in MACROS
    ]
    macro_head = (
        "macro", "process", "ports", "words x bits", "um2", "um2 per bit",
        "um2 per bit, 28 nm eq.", "source",
    )  # fmt: skip
    return {
        "memories": table(head, rows),
        "macros": table(macro_head, macros, align_right=False),
    }


TABLES = {
    "memories": Tables(("memories", "macros"), lambda options: (memory_tables(), 0.0)),
}

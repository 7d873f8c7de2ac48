"""Readers of RoPE: one type for all layers, or one for each kind of layer. Pure Python."""

from collections.abc import Callable
from typing import Any

from golden.llm.decoder.reading import Fields, Read, is_number, is_whole

_POSITIONS = "original_max_position_embeddings"
_BASE = 10_000.0


def _is_above(value: Any) -> bool:
    return is_number(value) and value > 0


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_above, value))


def _is_count(value: Any) -> bool:
    return is_whole(value) and value > 0


# Field to what it must be; of an optional field transformers has a default.
_Rules = dict[str, tuple[Callable[[Any], bool], str]]
_NUMBER = (_is_above, "a number above 0")
_COUNT = (_is_count, "a whole number of 1 or more")
_LIST = (_is_list, "a list of numbers above 0")
_TRUTH = (lambda value: isinstance(value, bool), "true or false")
# Of each type of RoPE: what transformers reads beside its base, needed and optional.
_TYPES: dict[str, tuple[_Rules, _Rules]] = {
    "default": ({}, {}),
    "linear": ({"factor": _NUMBER}, {}),
    "dynamic": ({"factor": _NUMBER}, {}),
    "yarn": (
        {"factor": _NUMBER, _POSITIONS: _COUNT},
        {
            "attention_factor": _NUMBER, "beta_fast": _NUMBER, "beta_slow": _NUMBER,
            "mscale": _NUMBER, "mscale_all_dim": _NUMBER, "truncate": _TRUTH,
        },
    ),
    "longrope": (
        {"long_factor": _LIST, "short_factor": _LIST, _POSITIONS: _COUNT},
        {"attention_factor": _NUMBER, "factor": _NUMBER},
    ),
    "llama3": (
        {"factor": _NUMBER, "high_freq_factor": _NUMBER, "low_freq_factor": _NUMBER,
         _POSITIONS: _COUNT},
        {},
    ),
}  # fmt: skip
# Names of Phi-3's checkpoints for one type.
PHI3 = {"su": "longrope", "yarn": "longrope"}


def _given(read: Read) -> tuple[str, Any]:
    """The field that states the type, and its value; null if none does."""
    both = {name: read.get(name) for name in ("rope_parameters", "rope_scaling")}
    found = {name: value for name, value in both.items() if value is not None}
    if len(found) == 2:
        read.refuse("rope_scaling", "null beside rope_parameters", found["rope_scaling"])
    name, value = next(iter(found.items()), ("rope_parameters", None))
    if value is not None and not isinstance(value, dict):
        read.refuse(name, "an object", value)
    return name, value


def _stated(
    read: Read, place: str, value: Fields, base: float, positions: int, types: Fields, own: bool
) -> dict[str, Any]:
    """Type, base and parameters of ``value``, which is at ``place``; own: may be partial."""
    kind = value.get("rope_type", value.get("type", "default"))
    kind = types.get(kind, kind) if isinstance(kind, str) else kind
    if not isinstance(kind, str) or kind not in _TYPES:
        read.refuse(f"{place}.rope_type", f"one of {', '.join(_TYPES)}", kind)
    needed, optional = _TYPES[kind]
    value = dict(value)
    if _POSITIONS in needed and value.get(_POSITIONS) is None and positions:
        value[_POSITIONS] = positions
    if kind == "dynamic" and value.get(_POSITIONS) == positions:
        del value[_POSITIONS]  # what releases before read, at the value that this one takes
    made = {}
    for field, (is_right, wanted) in {**needed, **optional}.items():
        found = value.get(field)
        if found is None and field in needed:
            read.lacks(f"{place}.{field}")
        if found is not None:
            if not is_right(found):
                read.refuse(f"{place}.{field}", wanted, found)
            made[field] = tuple(found) if isinstance(found, list) else found
    for field in sorted(value.keys() - made.keys() - {"rope_type", "type", "rope_theta"}):
        if value[field] is None or (
            field == "partial_rotary_factor" and (own or value[field] == 1)
        ):
            continue
        read.refuse(f"{place}.{field}", f"null with rope_type {kind}", value[field])
    stated = value.get("rope_theta", base)
    if not _is_above(stated):
        read.refuse(f"{place}.rope_theta", "a number above 0", stated)
    return {"rope": kind, "rope_base": float(stated), "rope_scaling": tuple(sorted(made.items()))}


def rope(
    read: Read,
    base: float = _BASE,
    absent: Fields | None = None,
    types: Fields | None = None,
) -> dict[str, Any]:
    """The fields of Decoder that say what RoPE is, one for all layers.

    base, absent: what transformers takes where no field states it; types: other names of types.
    """
    base = read.number("rope_theta", absent=base)
    place, value = _given(read)
    positions = read.whole("max_position_embeddings", absent=0, null=0)
    return _stated(read, place, value or absent or {}, base, positions, types or {}, own=False)


def partial_rope(read: Read, head_size: int, types: Fields) -> dict[str, Any]:
    """Phi-3 turns ``partial_rotary_factor`` of each head, and has other names for longrope."""
    base = read.number("rope_theta", absent=_BASE)
    place, value = _given(read)
    value = value or {}
    original = read.whole(_POSITIONS, absent=4096)
    share = read.number("partial_rotary_factor", absent=1.0)
    share = value.get("partial_rotary_factor", share)
    if not _is_above(share) or share > 1:
        read.refuse("partial_rotary_factor", "a number above 0, 1 at most", share)
    kind = value.get("rope_type", value.get("type", "default"))
    if isinstance(kind, str) and types.get(kind, kind) == "longrope":
        value = {**value, _POSITIONS: original}  # transformers prefers it to the object's own
    made = _stated(read, place, value, base, original, types, own=True)
    if made["rope"] not in ("default", "longrope"):
        read.refuse(f"{place}.rope_type", "default or longrope", made["rope"])
    made["rotary_size"] = size = int(head_size * share)
    if size < 2 or size % 2:
        read.refuse("partial_rotary_factor", "such that an even number of elements turn", share)
    for name, each in made["rope_scaling"]:
        if isinstance(each, tuple) and len(each) != size // 2:
            read.refuse(f"{place}.{name}", f"a list of {size // 2} numbers", list(each))
    return made


def rope_by_layer(read: Read) -> dict[str, Any]:
    """Gemma 3 turns layers with a window by a base of their own, without scaling."""
    bases = {
        "full_attention": read.number("rope_theta", absent=1_000_000.0),
        "sliding_attention": read.number("rope_local_base_freq", absent=_BASE),
    }
    place, value = _given(read)
    value = value or {}
    if place == "rope_scaling":
        value = {"full_attention": value}
    positions = read.whole("max_position_embeddings", absent=0, null=0)
    for field in sorted(value.keys() - bases.keys()):
        read.refuse(f"{place}.{field}", "absent: there is an object for each type of layer", value)
    made = {}
    for kind, base in bases.items():
        each = value.get(kind)
        if each is not None and not isinstance(each, dict):
            read.refuse(f"{place}.{kind}", "an object", each)
        where = place if place == "rope_scaling" else f"{place}.{kind}"
        made[kind] = _stated(read, where, each or {}, base, positions, {}, own=False)
    local = made["sliding_attention"]
    if local["rope"] != "default":
        read.refuse(f"{place}.sliding_attention.rope_type", "default", local["rope"])
    return {**made["full_attention"], "rope_local": local["rope_base"]}

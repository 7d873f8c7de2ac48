"""The declarations of a C header as ctypes has them, so that nothing is declared twice.

It reads what ``senbazuru.h`` needs: enumerations with values, structures of numbers, arrays of
these, pointers, functions and other structures, and functions. ValueError: a type that it does not
know.
"""

import ctypes
import dataclasses
import re
from pathlib import Path
from typing import Any

_NUMBERS: dict[str, Any] = {
    "int": ctypes.c_int,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "double": ctypes.c_double,
    "void": None,
}
_COMMENT = re.compile(r"/\*.*?\*/|^#.*?$", re.DOTALL | re.MULTILINE)
_ENUM = re.compile(r"enum \w+ \{(.*?)\};", re.DOTALL)
_STRUCT = re.compile(r"typedef struct \{(.*?)\} (\w+);", re.DOTALL)
_FUNCTION = re.compile(r"^([\w ]+?[ *]+)(szr_\w+)\(([^)]*)\);", re.MULTILINE)
_POINTER_TO_FUNCTION = re.compile(r"(.*?)\(\*(\w+)\)\((.*)\)", re.DOTALL)
_DECLARED = re.compile(r"(.*?)(\w+)(?:\[(\d+)\])?", re.DOTALL)


@dataclasses.dataclass
class Header:
    """constants : name to value; structures : name to class

    functions : name to the type of the result, and those of the arguments
    """

    constants: dict[str, int] = dataclasses.field(default_factory=dict)
    structures: dict[str, Any] = dataclasses.field(default_factory=dict)
    functions: dict[str, tuple[Any, list[Any]]] = dataclasses.field(default_factory=dict)

    def read(self, file: Path) -> "Header":
        """Adds the declarations of a file."""
        text = _COMMENT.sub("", file.read_text())
        for body in _ENUM.findall(text):
            for item in filter(None, map(str.strip, body.split(","))):
                name, value = item.split("=")
                self.constants[name.strip()] = int(value)
        for body, name in _STRUCT.findall(text):
            fields = [self._field(item) for item in filter(None, map(str.strip, body.split(";")))]
            self.structures[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
        for result, name, body in _FUNCTION.findall(text):
            self.functions[name] = self._type(result), self._arguments(body)
        return self

    def load(self, library: Path) -> ctypes.CDLL:
        """The library, its functions with their types. A call lets other threads run."""
        loaded = ctypes.CDLL(str(library))
        for name, (result, arguments) in self.functions.items():
            if hasattr(loaded, name):
                function = getattr(loaded, name)
                function.restype, function.argtypes = result, arguments
        return loaded

    def _field(self, item: str) -> tuple[str, Any]:
        if made := _POINTER_TO_FUNCTION.fullmatch(item):
            result, name, arguments = made.groups()
            return name, ctypes.CFUNCTYPE(self._type(result), *self._arguments(arguments))
        return self._declared(item)

    def _arguments(self, body: str) -> list[Any]:
        return [self._declared(item.strip())[1] for item in body.split(",")]

    def _declared(self, item: str) -> tuple[str, Any]:
        made = _DECLARED.fullmatch(item)
        if made is None:
            raise ValueError(f"no declaration: {item!r}")
        kind = self._type(made[1])
        return made[2], kind * int(made[3]) if made[3] else kind

    def _type(self, text: str) -> Any:
        words = text.replace("const", "").replace("*", " * ").split()
        name, pointers = words[0], words[1:]
        if name == "char" and pointers == ["*"]:
            return ctypes.c_char_p
        if name in ("void", "szr_engine") and pointers:
            found: Any = ctypes.c_void_p
            pointers = pointers[1:]
        elif name in _NUMBERS or name in self.structures:
            found = self.structures.get(name) or _NUMBERS[name]
        else:
            raise ValueError(f"no such type: {text!r}")
        for _ in pointers:
            found = ctypes.POINTER(found)
        return found

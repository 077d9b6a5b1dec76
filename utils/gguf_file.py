"""Read a GGUF file: its fields, and its tensors as numbers.

The layout is that of ggml's GGUF specification, versions 2 and 3, little-endian. The `gguf` package knows how each
block of quantised weights is packed, and unpacks it here. Its own reader is not used: it makes an array of each string,
and a tokenizer has 100,000 of them: that takes seconds.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class GGUFTensor:
    """One packed tensor, still in the file."""

    packed: np.ndarray  # bytes, [rows, bytes of a row]
    kind: int  # how it is packed, a gguf.GGMLQuantizationType

    def numbers(self) -> np.ndarray:
        """The tensor unpacked to float32, [rows, columns] or [columns]."""
        from gguf import GGMLQuantizationType, dequantize

        return dequantize(self.packed, GGMLQuantizationType(self.kind))


def read_gguf(path: Path) -> tuple[dict[str, object], dict[str, GGUFTensor]]:
    """The fields and the tensors of a GGUF file, by name.

    Raises:
        ValueError: the file is truncated, or is not a GGUF file of version 2 or 3.
    """
    data = np.memmap(path, mode="r").view(np.ndarray) if path.stat().st_size else np.empty(0, np.uint8)
    try:
        return _parse(data)
    except (struct.error, UnicodeDecodeError, KeyError, ValueError) as error:
        raise ValueError(f"{path.name} is truncated or not a GGUF file ({error}): fetch it again") from error


def _parse(data: np.ndarray) -> tuple[dict[str, object], dict[str, GGUFTensor]]:
    from gguf import GGML_QUANT_SIZES

    buffer, at = memoryview(data), 0

    def number(code: str):
        nonlocal at
        (value,) = struct.unpack_from("<" + code, buffer, at)
        at += struct.calcsize(code)
        return value

    def text() -> str:
        nonlocal at
        length = number("Q")
        if at + length > len(buffer):
            raise ValueError("a text runs past its end")
        at += length
        return str(buffer[at - length : at], "utf-8")

    def value(kind: int):
        if kind == _STRING:
            return text()
        if kind == _ARRAY:
            kind, count = number("I"), number("Q")
            return [value(kind) for _ in range(count)]
        return number(_NUMBERS[kind])

    magic, version = bytes(buffer[:4]), struct.unpack_from("<I", buffer, 4)[0]
    if magic != b"GGUF" or version not in (2, 3):
        raise ValueError(f"it begins with {magic!r}, version {version}")
    at = 8
    tensor_count, field_count = number("Q"), number("Q")
    fields = {text(): value(number("I")) for _ in range(field_count)}
    listed = [
        (text(), [number("Q") for _ in range(number("I"))], number("I"), number("Q")) for _ in range(tensor_count)
    ]
    alignment = fields.get("general.alignment", 32)
    start = -(-at // alignment) * alignment
    tensors = {}
    for name, sizes, kind, offset in listed:
        columns, *rows = sizes  # innermost first
        block, block_bytes = GGML_QUANT_SIZES[kind]
        shape = (*reversed(rows), columns // block * block_bytes)
        count = int(np.prod(shape))
        packed = data[start + offset : start + offset + count]
        if packed.size != count:
            raise ValueError(f"tensor {name} runs past its end")
        tensors[name] = GGUFTensor(packed.reshape(shape), kind)
    return fields, tensors

"""Writes GGUF files: a model in another tensor type, and a tiny model with a long context made from a seed.

Needs the ``gguf`` package (the extra ``pytest-parity[gguf]``), which is imported on first use.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from .errors import ToolMissing

if TYPE_CHECKING:
    from gguf import GGUFReader, GGUFWriter
    from gguf.gguf_reader import ReaderTensor

TargetType = Literal["F32", "Q8_0"]
Floats = npt.NDArray[np.float32]

# llama.cpp's numbers for what a file is mostly made of.
_FILE_TYPES: dict[TargetType, int] = {"F32": 0, "Q8_0": 7}


def writer_version() -> str:
    """The version of the ``gguf`` package, which decides the layout of a written file."""
    _gguf()
    return f"gguf {importlib.metadata.version('gguf')}"


class TensorDigest:
    """SHA-256 over tensors in the order they are written: name, type, shape and bytes of each.

    Metadata and padding do not count, so the digest holds for any version of the writer.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, name: str, kind: str, shape: Iterable[int], data: npt.NDArray[Any]) -> None:
        """Take one tensor in; ``shape`` is in elements, row-major."""
        body = np.ascontiguousarray(data)
        head = f"{name}\0{kind}\0{','.join(map(str, shape))}\0{body.nbytes}\0"
        self._digest.update(head.encode())
        self._digest.update(body.data.cast("B") if body.size else b"")

    def hexdigest(self) -> str:
        """The digest of everything added so far."""
        return self._digest.hexdigest()


def retype(source: Path, target: Path, kind: TargetType) -> str:
    """Write the model ``source`` to ``target`` with its matrices as ``kind``; return the tensors' digest.

    Vectors and F32 tensors that a quantised file keeps stay F32. Metadata is kept, except for the file type.
    Works tensor by tensor: memory stays at a few times the largest tensor. Raises ``ToolMissing`` without
    the ``gguf`` package.
    """
    gguf = _gguf()
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    _copy_metadata(reader, writer, _FILE_TYPES[kind])
    for tensor in reader.tensors:
        wanted = gguf.GGMLQuantizationType[_target_kind(tensor, kind)]
        shape = _shape(tensor)
        if wanted == gguf.GGMLQuantizationType.F32:
            count = int(np.prod(shape))
            writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), count * 4)
        else:
            bytes_shape = gguf.quant_shape_to_byte_shape(shape, wanted)
            size = int(np.prod(bytes_shape))
            writer.add_tensor_info(tensor.name, bytes_shape, np.dtype(np.uint8), size, wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    digest = TensorDigest()
    for tensor in reader.tensors:
        name = _target_kind(tensor, kind)
        wanted = gguf.GGMLQuantizationType[name]
        data: npt.NDArray[Any] = tensor.data
        if tensor.tensor_type != wanted:
            data = gguf.dequantize(tensor.data, tensor.tensor_type)
            if wanted != gguf.GGMLQuantizationType.F32:
                data = gguf.quantize(data, wanted)
        data = np.ascontiguousarray(data)
        digest.add(tensor.name, name, _shape(tensor), data)
        writer.write_tensor_data(data)
    writer.close()
    return digest.hexdigest()


def write_tensors(writer: GGUFWriter, tensors: Iterable[tuple[str, Floats]]) -> str:
    """Write F32 tensors and close the file; return their digest. The metadata must be added before."""
    digest = TensorDigest()
    for name, data in tensors:
        digest.add(name, "F32", data.shape, data)
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return digest.hexdigest()


def new_writer(target: Path, architecture: str) -> GGUFWriter:
    """A writer of a new file; raises ``ToolMissing`` without the ``gguf`` package."""
    writer: GGUFWriter = _gguf().GGUFWriter(target, architecture)
    return writer


def _copy_metadata(reader: GGUFReader, writer: GGUFWriter, file_type: int) -> None:
    for key, field in reader.fields.items():
        # The writer says these itself: the header's counts, and the architecture it was made with.
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        if key == "general.file_type":
            writer.add_file_type(file_type)
            continue
        sub_type = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type)
    if "general.file_type" not in reader.fields:
        writer.add_file_type(file_type)


def _target_kind(tensor: ReaderTensor, kind: TargetType) -> str:
    own: str = tensor.tensor_type.name
    return "F32" if own == "F32" else kind


def _shape(tensor: ReaderTensor) -> tuple[int, ...]:
    """The shape in elements, row-major; GGUF itself counts from the innermost dimension."""
    return tuple(int(size) for size in reversed(tensor.shape))


def _gguf() -> Any:
    try:
        return importlib.import_module("gguf")
    except ImportError as error:
        raise ToolMissing(
            "the Python package gguf",
            expected="it to be installed, to write model files",
            found=f"{error}",
            mend='Run `pip install "pytest-parity[gguf]"` and run the command again.',
        ) from error

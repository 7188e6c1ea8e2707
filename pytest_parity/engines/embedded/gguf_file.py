"""Writes the engine's weights as a GGUF file, so that real llama.cpp runs the same model.

``python -m pytest_parity.engines.embedded.gguf_file OUT.gguf --seed N``; needs the extra ``gguf``.

llama.cpp attends over the whole context where this engine keeps a window: on these weights both write the
same tokens, because nothing but the copied position scores high. Run it with flash attention off.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pytest_parity.engines.embedded import vocabulary
from pytest_parity.engines.embedded.weights import Weights, build_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    import gguf
    from numpy.typing import NDArray

NORMAL_TOKEN = 1
CONTROL_TOKEN = 3
"""GGUF's token types, as the file stores them."""


def token_texts() -> list[str]:
    """Return the vocabulary as byte-level BPE files write it: each byte as a printable character."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    texts = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(vocabulary.END) if byte not in texts)
    texts |= {byte: chr(0x100 + place) for place, byte in enumerate(others)}
    texts |= vocabulary.SPECIAL_NAMES
    return [texts[token] for token in range(vocabulary.SIZE)]


def write_gguf(weights: Weights, path: Path) -> None:
    """Write ``weights`` to ``path``: architecture llama, F32, byte-level vocabulary."""
    try:
        from gguf import GGUFWriter, LlamaFileType
    except ImportError as error:
        message = "gguf: expected the package gguf, found none; install pytest-parity[gguf]"
        raise RuntimeError(message) from error
    shape = weights.geometry
    file = GGUFWriter(path, "llama")
    file.add_name(f"pytest-parity copy weights, seed {weights.seed}")
    file.add_context_length(shape.context)
    file.add_embedding_length(shape.width)
    file.add_block_count(shape.layers)
    file.add_feed_forward_length(shape.feed_forward)
    file.add_head_count(shape.heads)
    file.add_head_count_kv(shape.kv_heads)
    # Heads of 16 over a width of 128 are not width / heads: the file has to say so.
    file.add_key_length(shape.head_width)
    file.add_value_length(shape.head_width)
    file.add_rope_dimension_count(shape.head_width)
    file.add_rope_freq_base(shape.rope_base)
    file.add_layer_norm_rms_eps(shape.epsilon)
    file.add_vocab_size(shape.vocabulary)
    file.add_file_type(LlamaFileType.ALL_F32)
    _add_vocabulary(file)
    for name, matrix in tensors(weights):
        file.add_tensor(name, matrix)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def tensors(weights: Weights) -> list[tuple[str, NDArray[np.float32]]]:
    """Return the file's tensors by name, each (outputs, inputs) as GGUF lays them out."""
    gain = np.ones(weights.geometry.width, np.float32)
    named = [
        ("token_embd.weight", weights.embedding),
        ("output.weight", np.ascontiguousarray(weights.head.T)),
        ("output_norm.weight", gain),
    ]
    for index, layer in enumerate(weights.layers):
        named += [(f"blk.{index}.{norm}.weight", gain) for norm in ("attn_norm", "ffn_norm")]
        named += [
            (f"blk.{index}.{name}.weight", np.ascontiguousarray(matrix.T)) for name, matrix in layer.named()
        ]
    return named


def _add_vocabulary(file: gguf.GGUFWriter) -> None:
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("gpt-2")
    file.add_token_list(token_texts())
    specials = vocabulary.SIZE - vocabulary.END
    file.add_token_types([NORMAL_TOKEN] * vocabulary.END + [CONTROL_TOKEN] * specials)
    # llama.cpp refuses an empty list of merges. This one would make a token that isn't there.
    file.add_token_merges(["\u0100 \u0101"])
    file.add_bos_token_id(vocabulary.BEGIN)
    file.add_eos_token_id(vocabulary.END)
    file.add_add_bos_token(value=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and write the file; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m pytest_parity.engines.embedded.gguf_file", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights")
    asked = parser.parse_args(arguments)
    weights = build_weights(asked.seed)
    try:
        write_gguf(weights, asked.out)
    except (OSError, RuntimeError) as error:
        sys.stderr.write(f"{parser.prog}: error: {error}\n")
        return 1
    sys.stdout.write(f"{asked.out}: {asked.out.stat().st_size} bytes, weights sha256 {weights.digest()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

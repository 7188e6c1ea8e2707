"""A model of random weights with a context of 131,072 ids, to make long prompts cheap on a real engine."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .gguf_files import Floats, new_writer, write_tensors

CONTEXT = 131_072
VOCABULARY = 512
SEED = "pytest-parity tiny-long 1"

_WIDTH = 64
_LAYERS = 2
_HEADS = 4
_KV_HEADS = 2
_HEAD_WIDTH = _WIDTH // _HEADS
_INNER = 192

_FIRST_BYTE = 3
_FIRST_PIECE = _FIRST_BYTE + 256

# llama.cpp's kinds of token.
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6


def write_tiny_long(target: Path) -> str:
    """Write the model to ``target`` and return its tensors' digest (see ``gguf_files.TensorDigest``).

    Llama architecture, F32, a SentencePiece vocabulary of three control tokens, 256 byte tokens, the space,
    the letters and 226 pairs of letters. The weights come from SHAKE-256 over a seed, so their bytes are the
    same under every numpy. The output rows of control and byte tokens are zero: the model never ends by
    itself, and never writes half a character, which a server would withhold from its stream. Raises
    ``ToolMissing`` without the ``gguf`` package.
    """
    writer = new_writer(target, "llama")
    writer.add_name("tiny-long")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_HEAD_WIDTH)
    writer.add_rope_freq_base(1_000_000.0)
    writer.add_vocab_size(VOCABULARY)
    writer.add_file_type(0)
    tokens, kinds = vocabulary()
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    # Longer pieces must win over their letters: SentencePiece merges by the highest score.
    writer.add_token_scores(
        [float(len(token)) if kinds[i] == _NORMAL else 0.0 for i, token in enumerate(tokens)]
    )
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    return write_tensors(writer, _tensors())


def vocabulary() -> tuple[list[str], list[int]]:
    """The tokens and their kinds (llama.cpp's numbers), both of length ``VOCABULARY``."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    pairs = [a + b for a in letters for b in letters]
    plain = ["\u2581", *letters]
    # Every third pair, so that all letters begin some.
    plain += pairs[::3][: VOCABULARY - _FIRST_PIECE - len(plain)]
    plain += pairs[1::3][: VOCABULARY - _FIRST_PIECE - len(plain)]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *plain]
    kinds = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, *[_NORMAL] * len(plain)]
    return tokens, kinds


def _tensors() -> Iterator[tuple[str, Floats]]:
    # The spread of each kind of matrix is chosen so that attention is peaked and each layer changes the
    # sum by about its own size: with less, every prompt ends in the same short loop.
    yield "token_embd.weight", _random("token_embd", (VOCABULARY, _WIDTH), 1.0)
    output = _random("output", (VOCABULARY, _WIDTH), 1.0)
    output[:_FIRST_PIECE] = 0.0
    yield "output.weight", output
    yield "output_norm.weight", np.ones(_WIDTH, np.float32)
    kv_width = _KV_HEADS * _HEAD_WIDTH
    for layer in range(_LAYERS):
        block = f"blk.{layer}."
        yield f"{block}attn_norm.weight", np.ones(_WIDTH, np.float32)
        yield f"{block}ffn_norm.weight", np.ones(_WIDTH, np.float32)
        for name, rows, columns, gain in (
            ("attn_q", _WIDTH, _WIDTH, 2.0),
            ("attn_k", kv_width, _WIDTH, 2.0),
            ("attn_v", kv_width, _WIDTH, 3.0),
            ("attn_output", _WIDTH, _WIDTH, 3.0),
            ("ffn_gate", _INNER, _WIDTH, 2.0),
            ("ffn_up", _INNER, _WIDTH, 2.0),
            ("ffn_down", _WIDTH, _INNER, 2.0),
        ):
            yield f"{block}{name}.weight", _random(block + name, (rows, columns), gain / math.sqrt(columns))


def _random(name: str, shape: tuple[int, int], deviation: float) -> Floats:
    """Uniform values around 0 with about the given standard deviation, from the seed and the name alone."""
    count = shape[0] * shape[1]
    raw = hashlib.shake_256(f"{SEED} {name}".encode()).digest(2 * count)
    steps = np.frombuffer(raw, "<i2").astype(np.float32)
    # One multiplication by one float32: exact to the bit on every machine.
    scale = np.float32(deviation * math.sqrt(3.0) / 32768.0)
    values: Floats = (steps * scale).reshape(shape)
    return values

"""Settings in effect as llama-server's log tells them; the lines are as it wrote them at ``-lv 4``."""

from __future__ import annotations

import pytest

from pytest_parity.engines.llama_log import facts_from_log

FLASH = "0.00.180.389 I llama_context: flash_attn            = enabled"
KV = (
    "0.00.183.001 I llama_kv_cache: size =   90.00 MiB (  2048 cells,  30 layers,  1/1 seqs), "
    "K (f32):   45.00 MiB, V (f32):   45.00 MiB"
)
BATCH = (
    "0.00.180.380 I llama_context: n_batch               = 512",
    "0.00.180.381 I llama_context: n_ubatch              = 512",
)
SYSTEM = "0.00.010.000 I system_info: n_threads = 1 (n_threads_batch = 1) / 2 | CPU : SSE3 = 1 | REPACK = 1 |"
WHOLE = (SYSTEM, *BATCH, FLASH, KV)


def test_a_whole_log() -> None:
    assert facts_from_log(WHOLE) == {
        "log.flash_attn": "enabled",
        "log.n_batch": "512",
        "log.n_ubatch": "512",
        "log.n_threads": "1",
        "log.n_threads_batch": "1",
        "log.kv_k": "f32",
        "log.kv_v": "f32",
    }


@pytest.mark.parametrize("word", ["enabled", "disabled", "auto"])
def test_flash_attention(word: str) -> None:
    assert facts_from_log([FLASH.replace("enabled", word)]) == {"log.flash_attn": word}


def test_batch_and_micro_batch_are_two_settings() -> None:
    assert facts_from_log([BATCH[0].replace("512", "2048"), BATCH[1].replace("512", "128")]) == {
        "log.n_batch": "2048",
        "log.n_ubatch": "128",
    }


def test_keys_and_values_have_types_of_their_own() -> None:
    line = KV.replace("K (f32)", "K (q8_0)").replace("V (f32)", "V (f16)")
    assert facts_from_log([line]) == {"log.kv_k": "q8_0", "log.kv_v": "f16"}


def test_threads_of_decode_and_of_a_batch() -> None:
    line = SYSTEM.replace("n_threads = 1", "n_threads = 12").replace(
        "n_threads_batch = 1", "n_threads_batch = 3"
    )
    assert facts_from_log([line]) == {"log.n_threads": "12", "log.n_threads_batch": "3"}


def test_the_last_line_counts() -> None:
    assert facts_from_log([FLASH.replace("enabled", "auto"), FLASH, BATCH[1]])["log.flash_attn"] == "enabled"
    assert facts_from_log([FLASH, FLASH.replace("enabled", "disabled")])["log.flash_attn"] == "disabled"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "resolve_fused_ops: Flash Attention enabled",
        "error: invalid argument: --bogus",
        "warn: LLAMA_ARG_FLASH_ATTN environment variable is set, but will be overwritten by command line argument -fa",
        "0.00.180.389 I llama_context: flash_attn            =",
        "0.00.180.389 I llama_context: n_ubatch              = many",
        "quantized V cache requires flash_attn to be enabled",
        "n_threads = 4",
    ],
)
def test_what_a_log_does_not_tell_is_not_made_up(line: str) -> None:
    assert facts_from_log([line]) == {}


def test_nothing_is_known_from_nothing() -> None:
    assert facts_from_log([]) == {}


def test_any_iterable_is_read_once() -> None:
    assert len(facts_from_log(iter(WHOLE))) == 7

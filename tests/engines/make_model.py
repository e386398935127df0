"""How to have a Qwen3 and its tokenizer with no download? Random weights, a BPE trained here.

make_model.py OUT [HIDDEN LAYERS]; runs in SGLang's own environment, not in Heddle's. Its answers
mean nothing: it stands for the shape of an engine's work, not for a language.
"""
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "agent tool call result step trajectory rollout reward",
    "def main(): return 0\n",
    '{"name": "python", "arguments": {"code": "print(1)"}}',
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE of 512 tokens with Qwen's chat markers."""
    bpe = Tokenizer(models.BPE(byte_fallback=False))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(CORPUS * 50, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def model(tokens: PreTrainedTokenizerFast, hidden: int, layers: int) -> Qwen3ForCausalLM:
    """Random bfloat16 weights under a fixed seed."""
    config = Qwen3Config(
        vocab_size=len(tokens),
        hidden_size=hidden,
        intermediate_size=hidden * 2,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden // 4,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        eos_token_id=tokens.eos_token_id,
        pad_token_id=tokens.pad_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config).to(torch.bfloat16)


def main(out: str, hidden: int = 64, layers: int = 2) -> None:
    """Write model and tokenizer into *out*."""
    tokens = tokenizer()
    tokens.save_pretrained(out)
    model(tokens, hidden, layers).save_pretrained(out)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]))

"""Make a tiny language model with random weights, which vLLM serves on a CPU at a millisecond per token.

    .venv-vllm/bin/python tools/vllm/make_tiny_model.py FOLDER

A Llama of two layers (0.56 million parameters, 1 MB), and a tokenizer trained on the source of the standard library: nothing
is downloaded. Special tokens and those that cannot be printed have zero weight in the output layer. So text comes out, never
an end of sequence: an answer has exactly `max_tokens` tokens.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

VOCABULARY = 1024
MAX_POSITIONS = 8192
SPECIAL_TOKENS = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/vllm/make_tiny_model.py FOLDER")
    folder = Path(sys.argv[1])
    if (folder / "config.json").exists():
        return
    disable_progress_bar()
    tokenizer = make_tokenizer()
    model = make_model()
    silence_tokens(model, tokenizer)
    tokenizer.save_pretrained(folder)
    model.to(torch.bfloat16).save_pretrained(folder)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer. The same Python gives the same one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = sorted(str(path) for module in (asyncio, logging) for path in Path(module.__file__).parent.glob("*.py"))
    tokenizer.train(sources, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_POSITIONS,
    )


def make_model() -> LlamaForCausalLM:
    """Return the model with the weights of seed 0."""
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=MAX_POSITIONS,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
            tie_word_embeddings=False,
        )
    )


def silence_tokens(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Zero the output weights of the tokens that shall never come out, and make the others decisive."""
    with torch.no_grad():
        model.lm_head.weight *= 40.0
        for token in range(VOCABULARY):
            if token < len(SPECIAL_TOKENS) or not tokenizer.decode([token]).isprintable():
                model.lm_head.weight[token] = 0.0


if __name__ == "__main__":
    main()

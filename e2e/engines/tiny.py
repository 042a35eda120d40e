"""Makes a Llama of 0.4 million random weights whose tokens are bytes. Arguments: a folder, and a seed of the weights.

It says nothing sensible, and has all that an engine needs: a tokenizer, a chat
template, and 32,768 tokens of context. The template does not show tools, which
would fill the context.
"""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer():
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {}
    for token in sorted(pre_tokenizers.ByteLevel.alphabet()) + special:
        vocabulary[token] = len(vocabulary)
    bytewise = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.decoder = decoders.ByteLevel()
    bytewise.add_special_tokens(special)
    whole = PreTrainedTokenizerFast(tokenizer_object=bytewise, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    whole.chat_template = TEMPLATE
    return whole, vocabulary


def main(folder, seed=0):
    whole, vocabulary = tokenizer()
    whole.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(vocabulary) + 5,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=32768,
        eos_token_id=vocabulary["<|im_end|>"],
        bos_token_id=None,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:3]))

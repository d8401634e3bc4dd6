"""Load an exported model with transformers alone: python -m examples.load_export FOLDER

FOLDER is an export written by `megatape export CHECKPOINT FOLDER`. This script does not import megatape.
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(folder: str, prompt: str = "def ") -> None:
    """Print a continuation of `prompt`, and the model's loss on it."""
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    inputs = tokenizer(prompt, return_tensors="pt")
    with torch.no_grad():
        tokens = model.generate(**inputs, max_new_tokens=20)
        loss = model(input_ids=tokens, labels=tokens).loss.item()
    print(tokenizer.decode(tokens[0], skip_special_tokens=True))
    print(f"loss {loss:.3f} nats per token")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""transformers' greedy answers to prompts in float32: oracle.py CHECKPOINT, a JSON line out for each one in.

{"prompt": [ids], "tokens": n}: {"tokens": [ids], "gap": x}
{"chat": "a user's message", "tokens": n}: also {"texts": [the text of no token, of the first, of the first two, ..]}

gap is the least distance between the two best logits of one of the tokens: below models.LEAST_GAP float32 does not
decide that token. A text that ends inside a character equals the text before its last token, as in a stream
(docs/http-api.md, Answers).
"""

import json
import pathlib
import sys

import models
import torch
import transformers


def texts(tokenizer: transformers.PreTrainedTokenizerBase, tokens: list[int]) -> list[str]:
    out = [""]
    for n in range(1, len(tokens) + 1):
        text = tokenizer.decode(tokens[:n], skip_special_tokens=True)
        out.append(out[-1] if text.endswith("\ufffd") else text)
    return out


def main(checkpoint: str) -> None:
    torch.set_num_threads(1)  # others use the machine meanwhile
    oracle, tokenizer = models.Oracle(pathlib.Path(checkpoint)), None
    for line in sys.stdin:
        asked, more = json.loads(line), {}
        prompt = asked.get("prompt")
        if "chat" in asked:
            tokenizer = tokenizer or transformers.AutoTokenizer.from_pretrained(checkpoint)
            chat = [{"role": "user", "content": asked["chat"]}]
            prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)
        tokens, gap = oracle.answer(prompt, asked["tokens"])
        if "chat" in asked:
            more["texts"] = texts(tokenizer, tokens)
        print(json.dumps({"tokens": tokens, "gap": gap, **more}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

"""The text server over a scripted session: prompts become transformers' tokens, and tokens transformers' text.

Tokenizers are those in build/tokenizers (e2e/setup/tokenizers.sh): all available ones, and at least one.
"""

import asyncio
import json
import os
import pathlib
import random
import tempfile
import unittest

import transformers
from tangram_front import selftest
from tangram_front.core import Core
from tangram_front.messages import FINISH_LENGTH, FINISH_STOP, FrontReply
from tangram_front.server import app_of, arguments, engine
from tangram_front.session import Ended

ROOT = pathlib.Path(__file__).resolve().parents[3]
# config.json determines the class of tokenizer in transformers.
MODEL_TYPES = {"qwen3": "qwen3_moe", "llama3_1": "llama", "deepseek_v3": "deepseek_v3", "gemma3": "gemma3_text", "gptoss": "gpt_oss", "llama2": "llama"}
TEXTS = (
    "Hello there.", "  two blanks,\n\na line between\tand a tab ", "def f(x):\n    return {x: [1, 2.5]}  # twice\n", "Zażółć gęślą jaźń", "今日は良い天気ですね。",
    "Привет, мир!", "مرحبا بالعالم", "नमस्ते दुनिया", "👩‍👩‍👧‍👦🏳️‍🌈 e\u0301 👍🏽", "∑x² — “quoted” … 1234567890",
)

LETTERS = tuple("abc  .\n") + ("the ", "今日", "は", "é", "e\u0301", "ż", "م", "न", "म\u0947", "👍🏽", "👩‍👩‍👧", "🏳️‍🌈", "∑", "𝔘", "\u00a0", "\u200d", "\t")
FUZZ_ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "10"))  # of each tokenizer


class Script:
    """Replaces a session: replies to each request with the tokens of `answer`."""

    def __init__(self, vocabulary: int) -> None:
        self.max_tokens, self.vocabulary = 4096, vocabulary
        self.submits, self.cancelled = [], []
        self.answer = lambda submit: []
        self.stays = False  # a request stays open after its tokens
        self.logprobs = False  # -1.5 for a token, which another one's -0.5 beats
        self.at_once = lambda: 1  # maximum tokens of the next piece: a gateway gathers those that arrive together
        self._queue = asyncio.Queue()

    def submit(self, submit) -> None:
        self.submits.append(submit)
        rest = list(self.answer(submit))
        while rest:
            tokens = rest[: self.at_once()]
            del rest[: len(tokens)]
            reply = FrontReply()
            piece = reply.pieces.pieces.add()
            piece.request = submit.request
            piece.tokens.extend(tokens)
            if self.logprobs and submit.HasField("logprobs"):
                for token in tokens:
                    piece.logprobs.add(tokens=[token, 7, 8], values=[-1.5, -0.5, -2.5], rank=2)
            if not rest and not self.stays:
                piece.finish = FINISH_STOP if tokens[-1] in submit.stop_tokens else FINISH_LENGTH
            self._queue.put_nowait(piece)

    def fail(self, request: str, why: str) -> None:
        reply = FrontReply()
        piece = reply.pieces.pieces.add()
        piece.request, piece.error = request, why
        self._queue.put_nowait(piece)

    def cancel(self, request: str) -> None:
        self.cancelled.append(request)

    async def pieces(self) -> list:
        piece = await self._queue.get()
        if piece is None:
            raise Ended("over")
        return [piece]

    def end(self) -> None:
        self._queue.put_nowait(None)


def folder_of(name: str, to: pathlib.Path) -> pathlib.Path:
    """A checkpoint without weights, with this tokenizer."""
    for file in (ROOT / "build/tokenizers" / name).iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(to / "tokenizer.json"))
    config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": MODEL_TYPES[name], "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 64,
              "moe_intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 2, "num_experts": 8,
              "num_experts_per_tok": 2, "max_position_embeddings": 4096, "dtype": "bfloat16", "eos_token_id": 3}
    if name != "qwen3":  # only the class of the tokenizer is theirs: the model is not used here
        config |= {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 8}
    (to / "config.json").write_text(json.dumps(config))
    (to / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    return to


class Front:
    """vLLM's handlers over a Script. `ask` returns status and events, or the whole answer."""

    @classmethod
    async def of(cls, folder: pathlib.Path, *flags: str) -> "Front":
        self = cls()
        args = arguments([f"--model={folder}", "--served-model-name=m", *flags])
        vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
        self.script = Script(vocabulary)
        self.core = Core(self.script)
        self.llm = engine(self.core, self.script, args)
        self.app = await app_of(self.llm, args)
        return self

    async def ask(self, path: str, **body):
        sent, out = [json.dumps({"model": "m", **body}).encode()], []
        status = 0

        async def receive():
            if sent:
                return {"type": "http.request", "body": sent.pop(), "more_body": False}
            await asyncio.Event().wait()  # the client stays connected

        async def send(message):
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                out.append(message.get("body", b""))

        scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
                 "root_path": "", "scheme": "http", "headers": [(b"content-type", b"application/json"), (b"x-request-id", b"door")], "server": ("x", 80), "client": ("y", 1)}
        await self.app(scope, receive, send)
        text = b"".join(out).decode()
        if body.get("stream") and status == 200:
            return status, [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        return status, json.loads(text)

    async def streamed(self, **body) -> tuple[str, str | None]:
        """The text of a streamed completion, and the reason of its end."""
        status, events = await self.ask("/v1/completions", stream=True, **body)
        assert status == 200, events
        choices = [event["choices"][0] for event in events if event["choices"]]
        assert not any("\ufffd" in choice["text"] for choice in choices), choices
        return "".join(choice["text"] for choice in choices), choices[-1]["finish_reason"]


def prefixes(tokenizer, prompt: list[int], tokens: list[int]) -> list[str]:
    """The text after no token, after one, and so on, without incomplete characters."""
    before = len(tokenizer.decode(prompt, skip_special_tokens=True))
    grown = [tokenizer.decode(prompt + tokens[:n], skip_special_tokens=True)[before:] for n in range(len(tokens) + 1)]
    return [text.rstrip("\ufffd") for text in grown[:-1]] + grown[-1:]


def stopped(grown: list[str], stops: list[str], min_tokens: int, include: bool) -> tuple[str, str]:
    """Text and finish reason of an answer that grows like this."""
    for end in range(len(grown[min_tokens]) + 1, len(grown[-1]) + 1):
        for stop in stops:
            if grown[-1][:end].endswith(stop):
                return grown[-1][: end if include else end - len(stop)], "stop"
    return grown[-1], "length"


def tokenizers() -> list[str]:
    found = [name for name in MODEL_TYPES if (ROOT / "build/tokenizers" / name / "tokenizer.json").exists()]
    assert found, "no tokenizer in build/tokenizers: run e2e/setup/tokenizers.sh"
    return found


class FrontTest(unittest.IsolatedAsyncioTestCase):
    def folder(self, name: str) -> pathlib.Path:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return folder_of(name, pathlib.Path(folder.name))

    async def test_prompts_and_texts_are_those_of_transformers(self) -> None:
        for name in tokenizers():
            with self.subTest(name):
                folder = self.folder(name)
                tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
                front = await Front.of(folder)
                for text in TEXTS:
                    prompt, tokens = tokenizer.encode(text), tokenizer.encode(text, add_special_tokens=False)
                    front.script.answer = lambda _, tokens=tokens: tokens
                    # The text that the answer adds to the prompt: SentencePiece drops a blank only where a text begins.
                    before, after = (tokenizer.decode(ids, skip_special_tokens=True) for ids in (prompt, prompt + tokens))
                    self.assertTrue(after.startswith(before))
                    want, asked = after[len(before) :], {"prompt": text, "max_tokens": len(tokens), "ignore_eos": True}
                    self.assertEqual(await front.streamed(**asked), (want, "length"))
                    self.assertEqual(list(front.script.submits[-1].prompt), prompt)
                    status, whole = await front.ask("/v1/completions", **asked)
                    self.assertEqual((status, whole["choices"][0]["text"]), (200, want))
                if tokenizer.chat_template is None:
                    continue
                for chat in ([{"role": "user", "content": "Hi"}],
                             [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXTS[4]}, {"role": "assistant", "content": TEXTS[8]},
                              {"role": "user", "content": TEXTS[1]}]):
                    want = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)
                    await front.ask("/v1/chat/completions", messages=chat, max_tokens=4)
                    self.assertEqual(list(front.script.submits[-1].prompt), want)

    async def test_a_stop_string_matches_across_any_tokens(self) -> None:
        folder = self.folder(tokenizers()[0])
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        front = await Front.of(folder)
        text = "Stop strings — at 今日は👍🏽 any cut, however long.\n\nEnd"
        tokens = tokenizer.encode(text, add_special_tokens=False)
        front.script.answer, front.script.stays = (lambda _: tokens), True
        cuts = [(i, j) for i in range(len(text)) for j in range(i + 1, min(i + 6, len(text)) + 1)]
        for i, j in random.Random(1).sample(cuts, 80):
            stop = text[i:j]
            got = await front.streamed(prompt="x", max_tokens=200, stop=[stop, "\u2603"])
            self.assertEqual(got, (text[: text.index(stop)], "stop"), stop)
            self.assertEqual(front.script.cancelled[-1], front.script.submits[-1].request, "the ranks are told at once")
        status, whole = await front.ask("/v1/completions", prompt="x", max_tokens=200, stop="any", include_stop_str_in_output=True)
        self.assertEqual((status, whole["choices"][0]["text"]), (200, text[: text.index("any") + 3]))

    async def test_fuzz_a_text_does_not_depend_on_how_its_tokens_came(self) -> None:
        """Random texts and random tokens, in pieces of any size, against the rule of streaming.

        The rule is computed from transformers' decoding of every prefix: a stop string counts once its end is there,
        unless that is within min_tokens; the one that ends first wins; nothing after it is text.
        """
        for name in tokenizers():
            folder = self.folder(name)
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            front = await Front.of(folder)
            prompt = tokenizer.encode("x")
            for seed in range(FUZZ_ROUNDS):
                with self.subTest(name, seed=seed):
                    draw = random.Random(f"{name} {seed}")
                    letters = draw.random() < 0.7
                    if letters:
                        text = "".join(draw.choice(LETTERS) for _ in range(draw.randint(1, 40)))
                        tokens = tokenizer.encode(text, add_special_tokens=False)
                    else:
                        tokens = [draw.randrange(5, len(tokenizer)) for _ in range(draw.randint(1, 40))]
                    grown = prefixes(tokenizer, prompt, tokens)
                    stops = [draw.choice(LETTERS) for _ in range(draw.randint(0, 1))]
                    if grown[-1] and "\ufffd" not in grown[-1]:
                        for _ in range(draw.randint(0, 3)):
                            at = draw.randrange(len(grown[-1]))
                            stops.append(grown[-1][at : at + draw.randint(1, 6)])
                    asked = {"prompt": prompt, "max_tokens": len(tokens), "min_tokens": draw.choice([0, 0, draw.randint(0, len(tokens))]), "stop": stops,
                             "include_stop_str_in_output": draw.random() < 0.3, "ignore_eos": True}
                    front.script.answer = lambda _, tokens=tokens: tokens
                    got = set()
                    for most in (1, 2, 5, len(tokens)):
                        front.script.at_once = lambda most=most: draw.randint(1, most)
                        status, events = await front.ask("/v1/completions", stream=True, **asked)
                        self.assertEqual(status, 200, events)
                        choices = [event["choices"][0] for event in events if event["choices"]]
                        got.add(("".join(choice["text"] for choice in choices), choices[-1]["finish_reason"]))
                        status, whole = await front.ask("/v1/completions", **asked)
                        got.add((whole["choices"][0]["text"], whole["choices"][0]["finish_reason"]))
                    self.assertEqual(len(got), 1, (asked, tokens))
                    if letters:
                        self.assertEqual(got, {stopped(grown, stops, asked["min_tokens"], asked["include_stop_str_in_output"])}, (asked, tokens))

    async def test_what_a_client_asks_for_reaches_the_ranks(self) -> None:
        front = await Front.of(self.folder(tokenizers()[0]))
        front.script.answer = lambda submit: [5, 3]
        status, answer = await front.ask(
            "/v1/completions", prompt=[7, 8], max_tokens=9, temperature=0.5, top_p=0.25, top_k=11, min_p=0.125, min_tokens=2, seed=-2, presence_penalty=0.5,
            frequency_penalty=-0.5, repetition_penalty=1.5, logit_bias={"17": 2}, stop_token_ids=[9], cache_salt="salt")
        self.assertEqual(status, 200, answer)
        self.assertEqual(answer["choices"][0]["finish_reason"], "stop")
        self.assertEqual(answer["usage"]["completion_tokens"], 2, "the EOS counts")
        submit = front.script.submits[-1]
        self.assertEqual((list(submit.prompt), submit.max_tokens, submit.temperature, submit.top_p), ([7, 8], 9, 0.5, 0.25))
        self.assertEqual((submit.top_k, submit.min_p, submit.min_tokens, submit.seed, submit.cache_salt), (11, 0.125, 2, 2**64 - 2, "salt"))
        self.assertEqual((submit.presence_penalty, submit.frequency_penalty, submit.repetition_penalty, dict(submit.logit_bias)), (0.5, -0.5, 1.5, {17: 2}))
        eos = front.llm.renderer.tokenizer.eos_token_id
        self.assertEqual(list(submit.stop_tokens), sorted({eos, 3, 4, 9}), "the tokenizer's, those of generation_config.json and the client's")
        self.assertRegex(submit.request, "^cmpl-door-", "the gateway finds its request by this")
        await front.ask("/v1/completions", prompt=[7, 8], max_tokens=9, ignore_eos=True)
        submit = front.script.submits[-1]
        self.assertEqual((list(submit.stop_tokens), submit.repetition_penalty, submit.top_k), ([], 0, 0))
        status, answer = await front.ask("/v1/completions", prompt=[7, 8], max_tokens=9, n=2, seed=5)
        self.assertEqual([choice["index"] for choice in answer["choices"]], [0, 1])
        self.assertEqual(len({s.seed for s in front.script.submits[-2:]}), 2)
        await front.ask("/v1/completions", prompt=[7] * 4000, max_tokens=200)
        self.assertEqual(front.script.submits[-1].max_tokens, 96, "what the context leaves")
        status, answer = await front.ask("/v1/completions", prompt=[7] * 4096, max_tokens=1)
        self.assertEqual(status, 400, answer)

    async def test_requests_of_the_other_apis(self) -> None:
        front = await Front.of(self.folder(tokenizers()[0]))
        tokenizer = front.llm.renderer.tokenizer
        tokens = tokenizer.encode("one two, three", add_special_tokens=False)
        front.script.answer = lambda submit: tokens
        chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
        await front.ask("/v1/chat/completions", messages=chat, max_tokens=len(tokens))
        prompt = list(front.script.submits[-1].prompt)
        status, answer = await front.ask("/v1/responses", input="Hi", instructions="Be brief.", max_output_tokens=len(tokens), temperature=0.5, seed=7, stop=["th"], request_id="resp_door")
        self.assertEqual((status, answer["id"], answer["output"][0]["content"][0]["text"]), (200, "resp_door", "one two, "), answer)
        submit = front.script.submits[-1]
        self.assertRegex(submit.request, "^resp_door_", "the gateway finds its request by this")
        self.assertEqual((list(submit.prompt), submit.temperature, submit.seed, submit.max_tokens), (prompt, 0.5, 7, len(tokens)))
        status, events = await front.ask("/v1/responses", input=[{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}], stream=True, max_output_tokens=len(tokens))
        self.assertEqual("".join(event["delta"] for event in events if event["type"] == "response.output_text.delta"), "one two, three")
        self.assertEqual(events[-1]["type"], "response.completed", "by which the gateway knows that a stream is whole")
        status, answer = await front.ask("/v1/messages", messages=chat[1:], system="Be brief.", max_tokens=len(tokens), temperature=0.5, top_k=3, stop_sequences=["th"])
        self.assertEqual((status, answer["content"][0]["text"], answer["stop_reason"]), (200, "one two, ", "stop_sequence"), answer)
        submit = front.script.submits[-1]
        self.assertRegex(submit.request, "^chatcmpl-door-")
        self.assertEqual((list(submit.prompt), submit.temperature, submit.top_k), (prompt, 0.5, 3))
        status, events = await front.ask("/v1/messages", messages=chat[1:], max_tokens=len(tokens), stream=True)
        self.assertEqual(events[-1]["type"], "message_stop", "by which the gateway knows that a stream is whole")
        status, answer = await front.ask("/v1/messages/count_tokens", messages=chat[1:], system="Be brief.")
        self.assertEqual((status, answer["input_tokens"]), (200, len(prompt)))

    async def test_log_probabilities_are_those_of_the_ranks(self) -> None:
        front = await Front.of(self.folder(tokenizers()[0]))
        tokenizer = front.llm.renderer.tokenizer
        tokens = tokenizer.encode("one two", add_special_tokens=False)
        front.script.answer, front.script.logprobs = (lambda _: tokens), True
        status, answer = await front.ask("/v1/chat/completions", messages=[{"role": "user", "content": "x"}], max_tokens=len(tokens), logprobs=True, top_logprobs=2)
        self.assertEqual(status, 200, answer)
        self.assertEqual(front.script.submits[-1].logprobs, 2)
        content = answer["choices"][0]["logprobs"]["content"]
        self.assertEqual([c["logprob"] for c in content], [-1.5] * len(tokens))
        self.assertEqual("".join(c["token"] for c in content), "one two")
        self.assertEqual([[t["logprob"] for t in c["top_logprobs"]] for c in content], [[-1.5, -0.5]] * len(tokens))
        await front.ask("/v1/chat/completions", messages=[{"role": "user", "content": "x"}], max_tokens=len(tokens))
        self.assertFalse(front.script.submits[-1].HasField("logprobs"))

    async def test_a_request_that_failed_and_a_session_that_ended(self) -> None:
        front = await Front.of(self.folder(tokenizers()[0]))
        asked = asyncio.create_task(front.ask("/v1/completions", prompt=[7], max_tokens=9))
        while not front.script.submits:
            await asyncio.sleep(0.01)
        front.script.fail(front.script.submits[0].request, "no rank has it")
        status, answer = await asked
        self.assertEqual(status, 500, answer)
        front.script.end()
        self.assertEqual(await asyncio.wait_for(front.core.ended, 60), "over")

    async def test_another_checkpoint_than_the_worlds_is_refused(self) -> None:
        folder = self.folder(tokenizers()[0])
        script = Script(1000)
        with self.assertRaisesRegex(ValueError, "the world one of 1000: it is another model's"):
            engine(Core(script), script, arguments([f"--model={folder}"]))

    def test_a_tokenizer_that_is_not_the_checkpoints_is_found(self) -> None:
        folder = self.folder(tokenizers()[0])
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        selftest.check(tokenizer, folder)

        class NoBlanks:
            def encode(self, text: str, add_special_tokens: bool) -> list[int]:
                return tokenizer.encode(text.replace(" ", ""), add_special_tokens=add_special_tokens)

        with self.assertRaisesRegex(selftest.TokenizerDiffers, "NoBlanks, which transformers chose by model_type .* from token 1 on"):
            selftest.check(NoBlanks(), folder)


if __name__ == "__main__":
    unittest.main()

"""litellm and Anthropic's client against a world with scripted answers (clients.go): other.py URL MODEL, with
PYTHONPATH of build/clients."""

import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise it downloads prices

import anthropic
import litellm
from chat import GREETING, LIST, TOOLS, said, same

TOOL = {"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}


def by_litellm(url: str, model: str) -> None:
    def ask(word: str, **more: object) -> object:
        return litellm.completion(model=f"openai/{model}", api_base=url, api_key="none", messages=said(word), temperature=0, max_retries=3, **more)

    whole = ask("greeting")
    same((whole.choices[0].message.content, whole.choices[0].finish_reason), (GREETING, "stop"))
    same("".join(c.choices[0].delta.content or "" for c in ask("greeting", stream=True)), GREETING)
    same(ask("list", stop=["ur fi"]).choices[0].message.content, LIST.split("ur fi")[0])
    call = ask("weather", tools=TOOLS, tool_choice="auto").choices[0].message.tool_calls[0].function
    same((call.name, json.loads(call.arguments)), ("get_weather", {"city": "Paris"}))
    try:
        ask("list", response_format={"type": "json_object"})
    except litellm.BadRequestError:
        pass
    else:
        raise SystemExit("response_format was taken")


def by_anthropic(url: str, model: str) -> None:
    client = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="none", max_retries=3)

    def asked(word: str) -> dict:
        return {"model": model, "max_tokens": 64, "extra_body": {"temperature": 0}, "system": "Be brief.", "messages": [{"role": "user", "content": f"please say the {word} for me"}]}

    whole = client.messages.create(**asked("greeting"))
    same((whole.content[0].text, whole.stop_reason), (GREETING, "end_turn"))
    with client.messages.stream(**asked("greeting")) as stream:
        same("".join(stream.text_stream), GREETING)
        same(stream.get_final_message().usage.output_tokens, whole.usage.output_tokens)
    stopped = client.messages.create(**asked("list"), stop_sequences=["ur fi"])
    same((stopped.content[0].text, stopped.stop_reason), (LIST.split("ur fi")[0], "stop_sequence"))
    called = client.messages.create(**asked("weather"), tools=[TOOL])
    use = next(block for block in called.content if block.type == "tool_use")
    same((use.name, use.input, called.stop_reason), ("get_weather", {"city": "Paris"}, "tool_use"))
    counted = client.messages.count_tokens(model=model, system="Be brief.", messages=asked("greeting")["messages"])
    same(counted.input_tokens, whole.usage.input_tokens)
    for wrong in ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"tools": [TOOL], "tool_choice": {"type": "any"}}):
        try:
            client.messages.create(**asked("list"), **wrong)
        except anthropic.BadRequestError as error:
            same(error.body["error"]["type"], "invalid_request_error")
        else:
            raise SystemExit(f"{wrong} was taken")
    try:
        client.messages.create(**asked("list") | {"model": "another"})
    except anthropic.NotFoundError as error:
        same(error.body["error"]["type"], "not_found_error")
    else:
        raise SystemExit("another model was taken")


if __name__ == "__main__":
    by_litellm(*sys.argv[1:])
    by_anthropic(*sys.argv[1:])

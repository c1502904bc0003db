"""The official OpenAI client against a world with scripted answers (clients.go): chat.py URL MODEL."""

import sys

import openai

GREETING = "Quick brown foxes 🏳️‍🌈. 今日は, 한국어!"
LIST = "one two three four five six seven eight nine ten"
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]


def said(word: str) -> list:
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"please say the {word} for me"}]


def same(got: object, want: object) -> None:
    if got != want:
        raise SystemExit(f"got {got!r}, want {want!r}")


def main(url: str, model: str) -> None:
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=3)
    same([m.id for m in client.models.list()], [model])
    same(client.models.retrieve(model).id, model)

    whole = client.chat.completions.create(model=model, messages=said("greeting"), temperature=0)
    same((whole.choices[0].message.content, whole.choices[0].finish_reason), (GREETING, "stop"))

    stream = client.chat.completions.create(model=model, messages=said("greeting"), temperature=0, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    same("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), GREETING)
    same(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)

    stopped = client.chat.completions.create(model=model, messages=said("list"), temperature=0, stop=["ur fi", "never"])
    same((stopped.choices[0].message.content, stopped.choices[0].finish_reason), (LIST.split("ur fi")[0], "stop"))
    short = client.chat.completions.create(model=model, messages=said("list"), temperature=0, max_completion_tokens=3)
    same((short.choices[0].message.content, short.choices[0].finish_reason), ("one two three", "length"))
    two = client.chat.completions.create(model=model, messages=said("list"), temperature=0.5, n=2)
    same([c.message.content for c in two.choices], [LIST, LIST])

    called = client.chat.completions.create(model=model, messages=said("weather"), temperature=0, tools=TOOLS, tool_choice="auto")
    call = called.choices[0].message.tool_calls[0].function
    same((call.name, call.arguments.replace(" ", ""), called.choices[0].finish_reason), ("get_weather", '{"city":"Paris"}', "tool_calls"))
    stream = client.chat.completions.create(model=model, messages=said("weather"), temperature=0, tools=TOOLS, tool_choice="auto", stream=True)
    calls = [c.choices[0].delta.tool_calls[0].function for c in stream if c.choices and c.choices[0].delta.tool_calls]
    same(("".join(c.name or "" for c in calls), "".join(c.arguments or "" for c in calls).replace(" ", "")), ("get_weather", '{"city":"Paris"}'))

    response = client.responses.create(model=model, instructions="Be brief.", input="please say the greeting for me", temperature=0)
    same((response.output_text, response.status, response.usage.output_tokens), (GREETING, "completed", whole.usage.completion_tokens))
    events = list(client.responses.create(model=model, input="please say the list for me", temperature=0, stream=True))
    same("".join(e.delta for e in events if e.type == "response.output_text.delta"), LIST)
    same(events[-1].response.output_text, LIST)
    called = client.responses.create(model=model, input="please say the weather for me", temperature=0, tools=[{"type": "function", "strict": False, **TOOLS[0]["function"]}])
    call = next(item for item in called.output if item.type == "function_call")
    same((call.name, call.arguments.replace(" ", "")), ("get_weather", '{"city":"Paris"}'))
    try:
        client.responses.create(model=model, input="x", previous_response_id="resp_1")
    except openai.BadRequestError as error:
        same(error.param, "previous_response_id")
    else:
        raise SystemExit("previous_response_id was taken")

    text = client.completions.create(model=model, prompt="please say the list for me\n", temperature=0, max_tokens=40)
    same(text.choices[0].text, LIST)

    likely = client.chat.completions.create(model=model, messages=said("list"), temperature=0, logprobs=True, top_logprobs=2, max_completion_tokens=2)
    same(["".join(c.token for c in likely.choices[0].logprobs.content), *(len(c.top_logprobs) for c in likely.choices[0].logprobs.content)], ["one two", 2, 2])
    same(all(-0.01 < c.logprob <= 0 for c in likely.choices[0].logprobs.content), True)

    for wrong in ({"extra_body": {"guided_json": {}}}, {"response_format": {"type": "json_object"}}, {"tool_choice": "required", "tools": TOOLS}):
        try:
            client.chat.completions.create(model=model, messages=said("list"), **wrong)
        except openai.BadRequestError as error:
            same(error.param in ("guided_json", "response_format", "tool_choice"), True)
        else:
            raise SystemExit(f"{wrong} was taken")
    try:
        client.chat.completions.create(model="another", messages=said("list"))
    except openai.NotFoundError as error:
        same(error.code, "model_not_found")
    else:
        raise SystemExit("another model was taken")


if __name__ == "__main__":
    main(*sys.argv[1:])

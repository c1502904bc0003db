// The official OpenAI client for Node against a world with scripted answers (clients.go): chat.mjs URL MODEL, with NODE_PATH of build/clients.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

const OpenAI = createRequire(import.meta.url)("openai");

const GREETING = "Quick brown foxes 🏳️‍🌈. 今日は, 한국어!";
const LIST = "one two three four five six seven eight nine ten";
const TOOLS = [{ type: "function", function: { name: "get_weather", parameters: { type: "object", properties: { city: { type: "string" } } } } }];
const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 3 });
const said = (word) => [{ role: "system", content: "Be brief." }, { role: "user", content: `please say the ${word} for me` }];
const ask = (word, more) => client.chat.completions.create({ model, messages: said(word), temperature: 0, ...more });

const ids = [];
for await (const m of client.models.list()) ids.push(m.id);
assert.deepEqual(ids, [model]);

const whole = await ask("greeting");
assert.equal(whole.choices[0].message.content, GREETING);
assert.equal(whole.choices[0].finish_reason, "stop");

let text = "";
let usage;
for await (const chunk of await ask("greeting", { stream: true, stream_options: { include_usage: true } })) {
  text += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, GREETING);
assert.equal(usage.completion_tokens, whole.usage.completion_tokens);

const stopped = await ask("list", { stop: ["ur fi"] });
assert.equal(stopped.choices[0].message.content, LIST.split("ur fi")[0]);

const called = await ask("weather", { tools: TOOLS, tool_choice: "auto" });
assert.equal(called.choices[0].finish_reason, "tool_calls");
assert.deepEqual(JSON.parse(called.choices[0].message.tool_calls[0].function.arguments), { city: "Paris" });

const runner = client.chat.completions.stream({ model, messages: said("weather"), temperature: 0, tools: TOOLS });
const final = await runner.finalMessage();
assert.equal(final.tool_calls[0].function.name, "get_weather");

const response = await client.responses.create({ model, input: "please say the list for me", temperature: 0 });
assert.equal(response.output_text, LIST);

await assert.rejects(ask("list", { guided_json: {} }), (error) => error instanceof OpenAI.BadRequestError && error.param === "guided_json");
await assert.rejects(client.chat.completions.create({ model: "another", messages: said("list") }), (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found");

// A client that disconnects in the middle of a stream causes no error for others.
const left = await ask("list", { stream: true });
for await (const chunk of left) {
  if (chunk.choices[0]?.delta.content) break;
}

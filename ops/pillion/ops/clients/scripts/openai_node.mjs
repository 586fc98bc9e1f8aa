// OpenAI's client for Node: whole, streamed, raw, and its helper.
import OpenAI from "openai";

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, timeout: 60_000 });
const chat = { model, messages: [{ role: "user", content: "Count to five." }], max_tokens: 16, seed: 1 };

function check(name, holds) {
  if (!holds) throw new Error(`${name} does not hold`);
  console.log("ok", name);
}

const models = [];
for await (const one of client.models.list()) models.push(one.id);
check("models", models.length === 1 && models[0] === model);

const { data: whole, response } = await client.chat.completions.create(chat).withResponse();
const text = whole.choices[0].message.content;
check("chat", text.length > 0 && whole.id.includes(response.headers.get("x-request-id")));

let streamed = "", usage = null;
const options = { stream: true, stream_options: { include_usage: true } };
for await (const chunk of await client.chat.completions.create({ ...chat, ...options })) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage;
}
check("stream", streamed === text && usage.completion_tokens === whole.usage.completion_tokens);

const helper = client.chat.completions.stream(chat);
check("stream helper", (await helper.finalContent()) === text);

const parameters = { type: "object", properties: { city: { enum: ["Rome", "Oslo"] } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "weather", strict: true, parameters } }];
const call = { ...chat, tools, tool_choice: "required", parallel_tool_calls: false, max_tokens: 64 };
const [called] = (await client.chat.completions.create(call)).choices[0].message.tool_calls;
const streamedCall = (await client.chat.completions.stream(call).finalMessage()).tool_calls[0];
check("tools", ["Rome", "Oslo"].includes(JSON.parse(called.function.arguments).city));
check("streamed tools", streamedCall.function.arguments === called.function.arguments);

const completion = await client.completions.create({ model, prompt: [1, 2, 3], max_tokens: 4, echo: true });
check("completion", completion.choices[0].finish_reason === "length");

for (const [name, call, kind, param] of [
  ["refused value", () => client.chat.completions.create({ ...chat, top_p: 5 }), OpenAI.BadRequestError, "top_p"],
  ["no embeddings", () => client.embeddings.create({ model, input: "x" }), OpenAI.NotFoundError, null],
]) {
  const error = await call().then(() => null, (thrown) => thrown);
  check(name, error instanceof kind && error.param === param);
}

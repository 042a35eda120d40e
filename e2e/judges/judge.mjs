// One official client library against a gate: two turns with tool calls, then
// a call that is refused. What the library made of it goes to stdout as JSON.
// argv: library, whole|stream. Environment: BASE, KEY.
const [lib, how] = process.argv.slice(2);
const stream = how === "stream";
const base = process.env.BASE, key = process.env.KEY;
const png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const schema = { type: "object", properties: { command: { type: "string" } }, required: ["command"] };
const out = { turns: [], refused: null, count: null, models: [] };
const turn = (text, reasoning, tools, finish, usage) => out.turns.push({ text, reasoning, tools, finish, usage });
const refusal = async (f) => {
  try { await f(); out.refused = { none: true }; } catch (e) { out.refused = { name: e.constructor.name, status: e.status ?? e.code, message: String(e.message) }; }
};

async function openaiChat() {
  const { default: OpenAI } = await import("openai");
  const client = new OpenAI({ baseURL: base + "/v1", apiKey: key, maxRetries: 0 });
  const tools = [{ type: "function", function: { name: "bash", description: "Runs.", parameters: schema } }];
  const messages = [{ role: "system", content: "Be brief." }, { role: "user", content: [{ type: "text", text: "Look." }, { type: "image_url", image_url: { url: "data:image/png;base64," + png } }] }];
  for (let i = 0; i < 2; i++) {
    let c;
    if (stream) {
      const s = client.chat.completions.stream({ model: "policy", messages, tools, stream_options: { include_usage: true } });
      c = await s.finalChatCompletion();
    } else c = await client.chat.completions.create({ model: "policy", messages, tools });
    const m = c.choices[0].message;
    turn(m.content, m.reasoning_content ?? "", (m.tool_calls ?? []).map((t) => [t.id, t.function.name, t.function.arguments]), c.choices[0].finish_reason, [c.usage.prompt_tokens, c.usage.completion_tokens]);
    messages.push(m, ...(m.tool_calls ?? []).map((t) => ({ role: "tool", tool_call_id: t.id, content: "out of " + t.id })));
  }
  for await (const m of client.models.list()) out.models.push(m.id);
  await refusal(() => client.chat.completions.create({ model: "policy", messages: [{ role: "user", content: "refuse" }], stream }));
}

async function openaiResponses() {
  const { default: OpenAI } = await import("openai");
  const client = new OpenAI({ baseURL: base + "/v1", apiKey: key, maxRetries: 0 });
  const tools = [{ type: "function", name: "bash", description: "Runs.", parameters: schema, strict: false }];
  const input = [{ role: "user", content: [{ type: "input_text", text: "Look." }, { type: "input_image", image_url: "data:image/png;base64," + png, detail: "auto" }] }];
  for (let i = 0; i < 2; i++) {
    let r;
    const body = { model: "policy", instructions: "Be brief.", input, tools };
    if (stream) {
      const s = client.responses.stream(body);
      r = await s.finalResponse();
    } else r = await client.responses.create(body);
    const calls = r.output.filter((o) => o.type === "function_call");
    const thoughts = r.output.filter((o) => o.type === "reasoning").map((o) => o.summary.map((s) => s.text).join("")).join("");
    turn(r.output_text, thoughts, calls.map((t) => [t.call_id, t.name, t.arguments]), r.status, [r.usage.input_tokens, r.usage.output_tokens]);
    input.push(...r.output, ...calls.map((t) => ({ type: "function_call_output", call_id: t.call_id, output: "out of " + t.call_id })));
  }
  for await (const m of client.models.list()) out.models.push(m.id);
  await refusal(() => client.responses.create({ model: "policy", input: "refuse", stream }));
}

async function anthropic() {
  const { default: Anthropic } = await import("@anthropic-ai/sdk");
  const client = new Anthropic({ baseURL: base, apiKey: key, maxRetries: 0 });
  const tools = [{ name: "bash", description: "Runs.", input_schema: schema }];
  const messages = [{ role: "user", content: [{ type: "text", text: "Look." }, { type: "image", source: { type: "base64", media_type: "image/png", data: png } }] }];
  for (let i = 0; i < 2; i++) {
    const body = { model: "policy", max_tokens: 1000, system: "Be brief.", messages, tools };
    const m = stream ? await client.messages.stream(body).finalMessage() : await client.messages.create(body);
    const of = (kind) => m.content.filter((b) => b.type === kind);
    turn(of("text").map((b) => b.text).join(""), of("thinking").map((b) => b.thinking).join(""), of("tool_use").map((b) => [b.id, b.name, JSON.stringify(b.input)]), m.stop_reason, [m.usage.input_tokens, m.usage.output_tokens]);
    messages.push({ role: "assistant", content: m.content });
    if (of("tool_use").length) messages.push({ role: "user", content: of("tool_use").map((b) => ({ type: "tool_result", tool_use_id: b.id, content: "out of " + b.id })) });
  }
  out.count = (await client.messages.countTokens({ model: "policy", messages: [{ role: "user", content: "how much is it" }] })).input_tokens;
  for await (const m of client.models.list()) out.models.push(m.id);
  await refusal(() => client.messages.create({ model: "policy", max_tokens: 10, messages: [{ role: "user", content: "refuse" }], stream }));
}

async function genai() {
  const { GoogleGenAI } = await import("@google/genai");
  const client = new GoogleGenAI({ apiKey: key, httpOptions: { baseUrl: base } });
  const config = { systemInstruction: "Be brief.", tools: [{ functionDeclarations: [{ name: "bash", description: "Runs.", parametersJsonSchema: schema }] }] };
  const contents = [{ role: "user", parts: [{ text: "Look." }, { inlineData: { mimeType: "image/png", data: png } }] }];
  for (let i = 0; i < 2; i++) {
    const parts = [];
    let last;
    if (stream) for await (const c of await client.models.generateContentStream({ model: "policy", contents, config })) { parts.push(...(c.candidates[0].content?.parts ?? [])); last = c; }
    else { last = await client.models.generateContent({ model: "policy", contents, config }); parts.push(...last.candidates[0].content.parts); }
    const calls = parts.filter((p) => p.functionCall).map((p) => p.functionCall);
    const said = (thought) => parts.filter((p) => p.text && !!p.thought === thought).map((p) => p.text).join("");
    turn(said(false), said(true), calls.map((c) => [c.id, c.name, JSON.stringify(c.args)]), last.candidates[0].finishReason, [last.usageMetadata.promptTokenCount, last.usageMetadata.candidatesTokenCount]);
    contents.push({ role: "model", parts });
    if (calls.length) contents.push({ role: "user", parts: calls.map((c) => ({ functionResponse: { id: c.id, name: c.name, response: { output: "out of " + c.id } } })) });
  }
  out.count = (await client.models.countTokens({ model: "policy", contents: "how much is it" })).totalTokens;
  for await (const m of await client.models.list()) out.models.push(m.name);
  await refusal(async () => {
    const body = { model: "policy", contents: "refuse" };
    if (stream) for await (const _ of await client.models.generateContentStream(body)); else await client.models.generateContent(body);
  });
}

await { chat: openaiChat, responses: openaiResponses, messages: anthropic, gemini: genai }[lib]();
console.log(JSON.stringify(out));

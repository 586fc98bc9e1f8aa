"use strict";

const KEY = "pillion-key"; // in the session storage, and nowhere else
const TRIES = 60; // to go on with an answer whose connection broke
const PAUSE = 1000; // ms between them, and between looks for a model
const PASSING = [409, 429, 502, 503]; // a stream that stands somewhere can be asked for again

const at = (id) => document.getElementById(id);
const [log, view, question, settings] = ["log", "view", "question", "settings"].map(at);
const pause = (ms) => new Promise((go) => setTimeout(go, ms));

let messages = []; // of this chat
let running = null; // the AbortController of the answer that comes
let follows = true; // what is seen stays at the log's end until the reader goes up

/** What the server said, or that it said nothing: status 0. */
class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const broken = (error) => (error.name === "AbortError" ? error : new Refusal(0, "The server cannot be reached."));

// --- the server

async function call(path, { headers, ...options } = {}) {
  const key = sessionStorage.getItem(KEY);
  const response = await fetch(path, {
    ...options,
    headers: key ? { ...headers, Authorization: `Bearer ${key}` } : headers,
  }).catch((error) => Promise.reject(broken(error)));
  if (response.ok) return response;
  const text = await response.text().catch((error) => Promise.reject(broken(error)));
  let message = `${response.status} ${response.statusText}`;
  try {
    message = JSON.parse(text).error.message;
  } catch {
    // It is no answer of this server's but a proxy's: the status has to do.
  }
  const wait = response.headers.get("Retry-After");
  throw new Refusal(response.status, wait ? `${message} Try again in ${wait} s.` : message);
}

/** Id and data of each server-sent event. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { done, value } = await reader.read().catch((error) => Promise.reject(broken(error)));
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const field = (name) => block.match(new RegExp(`^${name}: (.*)$`, "m"))?.[1];
      yield { id: field("id"), data: field("data") };
    }
  }
}

/** The chunks of an answer. Where its connection breaks it goes on behind the last event that came. */
async function* answer(body, signal, begun) {
  let name = null;
  let last = null;
  for (let tries = TRIES; ; tries--) {
    try {
      const response = name
        ? await call(`v1/streams/${name}`, { headers: last ? { "Last-Event-ID": last } : {}, signal })
        : await call("v1/chat/completions", {
            method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal,
          });
      begun((name = response.headers.get("x-request-id")));
      for await (const { id, data } of events(response)) {
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Refusal(200, chunk.error.message);
        last = id ?? last;
        tries = TRIES;
        yield chunk;
      }
      throw new Refusal(0, "The answer broke off.");
    } catch (error) {
      if (!name || !tries || !(error.status === 0 || PASSING.includes(error.status))) throw error;
      tell("The connection broke; going on with the answer ...");
      await pause(PAUSE);
      signal.throwIfAborted();
    }
  }
}

/** Asks for the models until there are some, or the server refuses to tell. */
async function models() {
  for (;;) {
    try {
      const { data } = await (await call("v1/models")).json();
      at("model").replaceChildren(...data.map(({ id }) => new Option(id)));
      if (data.length) return tell("");
      tell("The server has no model yet ...");
    } catch (error) {
      if (error.status !== 0) return refused(error);
      tell(`${error.message} Trying again ...`);
    }
    await pause(PAUSE);
  }
}

// --- the page

const tell = (text) => (at("status").textContent = text);

function refused(error) {
  if (error.status !== 401) return tell(error.message);
  at("panel").open = true;
  at("key").focus();
  return tell(sessionStorage.getItem(KEY) ? error.message : "This server wants an API key.");
}

function element(name, className, ...children) {
  const made = Object.assign(document.createElement(name), { className });
  made.append(...children);
  return made;
}

/** Adds to the log. Text only: nothing is read as HTML. */
function grow(parent, ...children) {
  parent.append(...children);
  follow();
}

const follow = () => follows && (view.scrollTop = view.scrollHeight);

/** The text as paragraphs, and as code what stands between lines of ```. */
function blocks(text) {
  const all = [];
  let code = false;
  for (const line of text.split("\n")) {
    if (line.trimStart().startsWith("```")) {
      code = !code;
      all.push([code, []]);
    } else {
      if (!all.length) all.push([code, []]);
      all.at(-1)[1].push(line);
    }
  }
  const full = all.filter(([, lines]) => lines.length);
  return full.map(([code, lines]) => element(code ? "pre" : "p", "", lines.join("\n")));
}

async function copy(text, shown) {
  if (navigator.clipboard) await navigator.clipboard.writeText(text);
  else { // without TLS there is none: the old way
    getSelection().selectAllChildren(shown);
    if (!document.execCommand("copy")) throw new Error("It is selected; the browser wants you to copy it.");
  }
  tell("Copied.");
}

/** `12 prompt + 30 tokens, first after 0.21 s, then 31.5 tokens/s`; times in ms. */
function figures({ usage, begin, first, last, early }) {
  if (!first) return "no text came";
  const rate = (1000 * (usage.completion_tokens - early)) / (last - first);
  const then = last > first ? `, then ${rate.toFixed(1)} tokens/s` : "";
  const told = `first after ${((first - begin) / 1000).toFixed(2)} s${then}`;
  return `${usage.prompt_tokens} prompt + ${usage.completion_tokens} tokens, ${told}`;
}

async function ask(text) {
  const chat = messages; // a new chat has another
  const stop = (running = new AbortController());
  const said = { content: "", reasoning: "" };
  const seen = { usage: {}, begin: performance.now(), first: 0, last: 0, early: 0 };
  const [shown, thought] = [element("div", "text"), element("div", "thought")];
  const folded = element("details", "", element("summary", "", "Reasoning"), thought);
  const article = element("article", "answer", shown);
  const mine = element("article", "user", text);
  article.setAttribute("aria-busy", "true"); // read out when it is whole
  grow(log, mine, article);
  at("send").hidden = !(at("stop").hidden = false);
  tell("");

  const system = at("system").value.trim();
  const body = {
    model: at("model").value || undefined,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...chat, { role: "user", content: text }],
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  };
  for (const { name, value } of settings.elements) if (name && value !== "") body[name] = Number(value);

  let name = null;
  let wrong = null;
  let why = "";
  try {
    for await (const { choices, usage } of answer(body, stop.signal, (given) => (name = given))) {
      seen.usage = usage ?? seen.usage;
      const { delta = {}, finish_reason: finish } = choices[0] ?? {};
      if (delta.reasoning_content && !said.reasoning) article.prepend(folded);
      if (delta.reasoning_content) grow(thought, delta.reasoning_content);
      if (delta.content) grow(shown, delta.content);
      said.reasoning += delta.reasoning_content ?? "";
      said.content += delta.content ?? "";
      if (delta.content || delta.reasoning_content) {
        seen.last = performance.now();
        if (!seen.first) [seen.first, seen.early] = [seen.last, seen.usage.completion_tokens];
        tell("");
      }
      if (finish === "length") why = "; it is cut off: no more tokens were allowed";
    }
  } catch (error) {
    if (stop.signal.aborted) why = "; stopped";
    else wrong = error;
  }
  if (stop.signal.aborted && name) await call(`v1/streams/${name}`, { method: "DELETE" }).catch(refused);

  shown.replaceChildren(...blocks(said.content));
  const foot = element("div", "foot", element("span", "figures", figures(seen) + why));
  if (said.content) {
    const button = element("button", "", "Copy");
    button.addEventListener("click", () => copy(said.content, shown).catch((error) => tell(error.message)));
    foot.append(button);
  }
  if (said.content || !wrong) grow(article, foot);
  article.setAttribute("aria-busy", "false");
  if (!wrong && said.content) {
    chat.push({ role: "user", content: text }, { role: "assistant", content: said.content });
  }
  if (wrong) { // the chat is as it was, and the question can be sent again
    const alert = element("p", "wrong", wrong.message);
    alert.setAttribute("role", "alert");
    grow(article, alert);
    question.value ||= text;
    if (wrong.status === 401) refused(wrong);
  }
  if (running === stop) idle();
}

function idle() {
  running = null;
  at("stop").hidden = !(at("send").hidden = false);
}

function send() {
  const text = question.value.trim();
  if (running || !text) return;
  if (!settings.checkValidity()) {
    at("panel").open = true;
    settings.reportValidity();
    return;
  }
  question.value = "";
  question.focus();
  ask(text);
}

view.addEventListener("scroll", () => (follows = view.scrollHeight - view.scrollTop - view.clientHeight < 60));
new ResizeObserver(follow).observe(view); // as where a phone's keyboard opens
at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
question.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.isComposing) running?.abort();
});
at("stop").addEventListener("click", () => {
  running?.abort();
  question.focus();
});
at("new").addEventListener("click", () => {
  running?.abort();
  idle();
  messages = [];
  log.replaceChildren();
  tell("");
  question.focus();
});
at("key").addEventListener("change", () => {
  sessionStorage.setItem(KEY, at("key").value);
  models();
});
settings.addEventListener("submit", (event) => {
  event.preventDefault();
  at("panel").open = false;
  question.focus();
});

at("key").value = sessionStorage.getItem(KEY) ?? "";
models();

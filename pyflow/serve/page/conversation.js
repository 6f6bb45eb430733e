// A conversation as data: what is sent of it, and how it is read from a file.

export const NUMBERS = {
  temperature: { label: 'Temperature', min: 0, step: 'any' },
  top_p: { label: 'Top p', min: 0, max: 1, step: 'any' },
  top_k: { label: 'Top k', min: 0, step: 1 },
  min_p: { label: 'Min p', min: 0, max: 1, step: 'any' },
  seed: { label: 'Seed', min: 0, step: 1 },
  max_tokens: { label: 'Most tokens', min: 1, step: 1 },
};

const FORMAT = 'pyflow conversation';
const MOST_MESSAGES = 10_000;
const N_ALTERNATIVES = 5;

/** Of messages {role, content, tokens?, stats?, note?}; settings hold the numbers that are given. */
export function conversation(given = {}) {
  const now = Date.now();
  return {
    id: crypto.randomUUID?.() ?? `${now}-${Math.random()}`, // not on plain http from elsewhere
    title: '',
    system: '',
    model: '',
    settings: {},
    messages: [],
    created: now,
    changed: now,
    ...given,
  };
}

export function titleOf({ title, messages }) {
  const first = messages.find((message) => message.role === 'user')?.content ?? '';
  const line = first.trim().split('\n', 1)[0];
  return title || (line.length > 60 ? `${line.slice(0, 59)}…` : line) || 'New conversation';
}

/** The body of the request for the next answer. */
export function bodyOf({ model, system, settings, messages }, withLogprobs) {
  const said = messages.map(({ role, content }) => ({ role, content }));
  if (system.trim()) said.unshift({ role: 'system', content: system });
  const body = { messages: said, stream: true, stream_options: { include_usage: true }, ...settings };
  if (model) body.model = model;
  if (withLogprobs) Object.assign(body, { logprobs: true, top_logprobs: N_ALTERNATIVES });
  return body;
}

/** Counts and speed of an answer. times: of the start, the first and the last news, in ms. */
export function statsOf(usage, times, seed) {
  const drawn = usage?.completion_tokens ?? 0;
  const seconds = (times.last - times.first) / 1000;
  return {
    drawn,
    prompt: usage?.prompt_tokens ?? 0,
    cached: usage?.prompt_tokens_details?.cached_tokens ?? 0,
    first: (times.first - times.start) / 1000,
    speed: drawn > 1 && seconds > 0 ? (drawn - 1) / seconds : 0,
    seed,
  };
}

export function statsText(stats) {
  const parts = [];
  const add = (given, text) => given && parts.push(text);
  add(stats.drawn, `${stats.drawn} tokens`);
  add(stats.speed, `${stats.speed.toFixed(1)} tokens/s`);
  const cached = stats.cached ? `, ${stats.cached} of them known` : '';
  add(stats.prompt, `prompt ${stats.prompt}${cached}`);
  add(stats.first, `first after ${stats.first.toFixed(2)} s`);
  add(stats.seed != null, `seed ${stats.seed}`);
  return parts.join(' · ');
}

/** The text of each token; one that ends within a character gives its text to the next. */
export function tokenTexts(tokens) {
  const decoder = new TextDecoder();
  return tokens.map(([bytes]) => decoder.decode(new Uint8Array(bytes), { stream: true }));
}

/** 0 for the unlikeliest to 5 for what was nearly sure. */
export function shade(logprob) {
  const p = Math.exp(logprob);
  return [0.02, 0.1, 0.3, 0.6, 0.9].filter((bound) => p >= bound).length;
}

export function exported({ title, system, model, settings, messages, created }) {
  const kept = { format: FORMAT, version: 1, title, system, model, settings, created, messages };
  return JSON.stringify(kept, null, 2);
}

/** A conversation from the text of a file: exported ones, and {messages: [...]} of OpenAI's API.
 * Error: it is none. */
export function imported(text) {
  let given;
  try {
    given = JSON.parse(text);
  } catch {
    throw new Error('The file is not JSON.');
  }
  const list = Array.isArray(given) ? given : given?.messages;
  if (!Array.isArray(list)) throw new Error('The file has no list of messages.');
  if (list.length > MOST_MESSAGES) throw new Error(`The file has more than ${MOST_MESSAGES} messages.`);
  const all = list.map(message);
  const systems = all.filter(({ role }) => role === 'system').map(({ content }) => content);
  return conversation({
    title: string(given.title),
    system: [string(given.system), ...systems].filter(Boolean).join('\n\n'),
    model: string(given.model),
    settings: numbers(given.settings),
    messages: all.filter(({ role }) => role !== 'system'),
  });
}

function message(given, index) {
  const role = given?.role === 'developer' ? 'system' : given?.role;
  if (!['user', 'assistant', 'system'].includes(role) || typeof given.content !== 'string') {
    throw new Error(`Message ${index + 1} is not a text of a user, an assistant or a system.`);
  }
  const found = { role, content: given.content };
  if (Array.isArray(given.tokens) && given.tokens.every(isToken)) found.tokens = given.tokens;
  if (given.stats && typeof given.stats === 'object') found.stats = numbers(given.stats, STATS);
  if (typeof given.note === 'string') found.note = given.note;
  return found;
}

const STATS = ['drawn', 'prompt', 'cached', 'first', 'speed', 'seed'];
const isNumber = (value) => typeof value === 'number' && Number.isFinite(value);
const string = (value) => (typeof value === 'string' ? value : '');

function numbers(given, names = Object.keys(NUMBERS)) {
  const own = (name) => given && Object.hasOwn(given, name) && isNumber(given[name]);
  return Object.fromEntries(names.filter(own).map((name) => [name, given[name]]));
}

function isToken(given) {
  if (!Array.isArray(given)) return false;
  const [bytes, logprob, others] = given;
  const isByte = (byte) => Number.isInteger(byte) && byte >= 0 && byte < 256;
  const isOther = (other) =>
    Array.isArray(other) && typeof other[0] === 'string' && isNumber(other[1]);
  const areAll = (list, check) => Array.isArray(list) && list.every(check);
  return areAll(bytes, isByte) && isNumber(logprob) && areAll(others, isOther);
}

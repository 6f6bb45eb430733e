// Requests to the server, and answers as they come.

/** The server's refusal, or what became of the way to it; status 0 if there was no answer. */
export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Data of server-sent events from pieces of text, split anywhere. */
export class EventReader {
  #rest = '';
  #data = [];

  /** The events that are complete with this piece. */
  feed(text) {
    const events = [];
    const lines = (this.#rest + text).split('\n');
    this.#rest = lines.pop();
    for (const whole of lines) {
      const line = whole.endsWith('\r') ? whole.slice(0, -1) : whole;
      if (line === '') {
        if (this.#data.length) events.push(this.#data.join('\n'));
        this.#data = [];
      } else if (line.startsWith('data:')) {
        this.#data.push(line.slice(line[5] === ' ' ? 6 : 5));
      }
    }
    return events;
  }
}

/** What is new in an event: text, tokens, the reason of the end, usage; null for the last event. */
export function readEvent(data) {
  if (data.trim() === '[DONE]') return null;
  const frame = JSON.parse(data);
  if (frame.error) throw new ServerError(500, String(frame.error.message ?? 'the answer broke off'));
  const choice = frame.choices?.[0];
  return {
    text: choice?.delta?.content ?? '',
    tokens: (choice?.logprobs?.content ?? []).map(token),
    reason: choice?.finish_reason ?? null,
    usage: frame.usage ?? null,
    model: frame.model ?? '',
    seed: frame.seed ?? null,
  };
}

/** [bytes, log-probability, alternatives]: a token may hold a part of a character. */
function token(entry) {
  const others = (entry.top_logprobs ?? []).map((other) => [other.token, other.logprob]);
  return [entry.bytes ?? [...new TextEncoder().encode(entry.token)], entry.logprob, others];
}

/** A response that is no error. ServerError. */
async function open(path, key, options) {
  let response;
  const headers = { ...options.headers };
  if (key) headers.authorization = `Bearer ${key}`;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ServerError(0, 'The server cannot be reached. Is pyflow serve still running?');
  }
  if (response.ok) return response;
  let message = `The server answered ${response.status}.`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // The status has to do.
  }
  throw new ServerError(response.status, String(message));
}

/** The models of the server: [{id, max_model_len, ...}]. */
export async function models(key) {
  return (await (await open('/v1/models', key, {})).json()).data;
}

/** The news of an answer, as `readEvent` gives them. ServerError; AbortError after a stop. */
export async function* answer(body, key, signal) {
  const response = await open('/v1/chat/completions', key, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
    signal,
  });
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  const events = new EventReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      for (const data of events.feed(decoder.decode(value, { stream: true }))) {
        const news = readEvent(data);
        if (news === null) return;
        yield news;
      }
    }
  } catch (error) {
    if (error.name === 'AbortError' || error instanceof ServerError) throw error;
    throw new ServerError(0, 'The answer broke off: the connection was lost.');
  } finally {
    reader.cancel().catch(() => {});
  }
  throw new ServerError(0, 'The answer broke off before its end.');
}

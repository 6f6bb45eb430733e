// The chat page: what happens when.

import { bodyOf, conversation, exported, imported, statsOf, titleOf } from './conversation.js';
import { byId, el } from './dom.js';
import { inColour, isPanelOpen, openPanel, showSettings, startPanel } from './panel.js';
import { ask, openSidebar, showConversations } from './sidebar.js';
import { Store, key } from './store.js';
import { answer, models as listModels } from './stream.js';
import { scrollToEnd, showGrowth, showMessages } from './view.js';

const MAX_FILE = 32 << 20;
const SAVE_MS = 1000;

const store = new Store();
const question = byId('question');
const writing = new Map(); // AbortController by the id of the conversation that is answered
let conversations = [];
let current = conversation();
let models = [];

const say = (text) => (byId('status').textContent = text);
const warn = (text) => (byId('trouble').textContent = text);

// Showing

function refresh() {
  const busy = writing.has(current.id);
  showMessages(current.messages, {
    writing: busy,
    inColour: inColour(),
    actions: { edit: editMessage, regenerate, refresh },
  });
  byId('title').textContent = titleOf(current);
  byId('send').hidden = busy;
  byId('stop').hidden = !busy;
  byId('export').disabled = byId('rename').disabled = current.messages.length === 0;
  document.title = current.messages.length ? `${titleOf(current)} – pyflow` : 'pyflow';
  showConversations(conversations, current, { choose, remove });
}

function choose(next) {
  current = next;
  warn('');
  openSidebar(false);
  showSettings(current, models);
  refresh();
  scrollToEnd();
  question.focus();
}

/** An empty conversation, with the model and sampling of the last one. */
function begin() {
  const { model, settings } = current;
  choose(conversation({ model, settings: { ...settings } }));
}

/** Keeps a conversation; an empty one is not worth it. */
async function save(given) {
  if (!given.messages.length) return;
  given.changed = Date.now();
  conversations = [given, ...conversations.filter((each) => each !== given)];
  try {
    await store.put(given);
  } catch {
    warn('The browser has no room to keep this conversation; export it, or delete others.');
  }
}

// Asking

async function send(text) {
  if (!text.trim() || writing.has(current.id)) return;
  current.messages.push({ role: 'user', content: text });
  await respond(current);
}

async function regenerate() {
  if (writing.has(current.id)) return;
  if (current.messages.at(-1)?.role === 'assistant') current.messages.pop();
  await respond(current);
}

/** A question that is changed is asked anew, and what followed goes; an answer is only changed. */
async function editMessage(index, text) {
  if (writing.has(current.id)) return;
  const { role } = current.messages[index];
  current.messages[index] = { role, content: text };
  if (role === 'user') {
    current.messages.length = index + 1;
    await respond(current);
  } else {
    await save(current);
    refresh();
  }
}

/** Writes the next answer of a conversation, which may leave the screen meanwhile. */
async function respond(asked) {
  const stop = new AbortController();
  const body = bodyOf(asked, inColour());
  const message = { role: 'assistant', content: '', note: 'stopped' }; // if the page is left
  asked.messages.push(message);
  writing.set(asked.id, stop);
  warn('');
  say('The answer is being written.');
  await save(asked);
  refresh();
  scrollToEnd();
  let trouble = '';
  try {
    await withKey(() => take(body, asked, message, stop.signal));
  } catch (error) {
    if (error.name !== 'AbortError') trouble = error.message;
    message.note = trouble ? 'broken off' : 'stopped';
  }
  writing.delete(asked.id);
  if (trouble && !message.content) asked.messages.pop();
  await save(asked);
  if (asked === current) {
    refresh();
    warn(trouble);
  } else refreshList();
  say(trouble ? '' : message.content || 'The answer is empty.');
}

const refreshList = () => showConversations(conversations, current, { choose, remove });

/** Reads an answer into a message. */
async function take(body, asked, message, signal) {
  const times = { start: performance.now(), first: 0, last: 0 };
  let saved = times.start;
  let frame = 0;
  for await (const news of answer(body, key.get(), signal)) {
    const now = performance.now();
    if (news.text || news.tokens.length) {
      times.first ||= now;
      times.last = now;
      message.content += news.text;
      if (news.tokens.length) (message.tokens ??= []).push(...news.tokens);
    }
    if (news.reason) message.note = news.reason === 'length' ? 'cut off: no room for more tokens' : '';
    if (news.usage) message.stats = statsOf(news.usage, times, news.seed);
    if (asked === current && !frame) {
      frame = requestAnimationFrame(() => {
        frame = 0;
        if (asked === current && writing.has(asked.id)) showGrowth(message, inColour());
      });
    }
    if (now - saved > SAVE_MS) {
      saved = now;
      store.put(asked).catch(() => {});
    }
  }
}

/** Runs; if the server asks for a key, asks the user for it, and runs again. */
async function withKey(run) {
  for (;;) {
    try {
      return await run();
    } catch (error) {
      if (error.status !== 401) throw error;
      const more = key.get() ? 'The server does not take the key that it was given.' : '';
      const given = await ask('Key of this server', { kind: 'password', more });
      if (given === null) throw error;
      key.set(given.trim());
    }
  }
}

// Conversations

async function rename() {
  const name = await ask('Name of this conversation', { value: titleOf(current), yes: 'Rename' });
  if (name === null) return;
  current.title = name.trim();
  await save(current);
  refresh();
}

async function remove(given) {
  const sure = await ask(`Delete “${titleOf(given)}”?`, { kind: 'hidden', yes: 'Delete' });
  if (sure === null) return;
  writing.get(given.id)?.abort();
  conversations = conversations.filter((each) => each !== given);
  if (given === current) begin();
  else refresh();
  await store.remove(given.id);
}

function exportFile() {
  const href = URL.createObjectURL(new Blob([exported(current)], { type: 'application/json' }));
  const name = titleOf(current).replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '') || 'conversation';
  el('a', { href, download: `${name}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

async function importFile(file) {
  try {
    if (file.size > MAX_FILE) throw new Error('The file is larger than 32 MiB.');
    const given = imported(await file.text());
    await save(given);
    choose(given);
  } catch (error) {
    warn(`${file.name}: ${error.message}`);
  }
}

// Listening

function onKey(event) {
  if (event.isComposing || byId('ask').open) return;
  if (event.key === 'Escape') {
    if (writing.has(current.id)) writing.get(current.id).abort();
    else if (isPanelOpen()) openPanel(false);
    else openSidebar(false);
  } else if (event.key.toLowerCase() === 'k' && (event.ctrlKey || event.metaKey)) {
    begin();
    event.preventDefault();
  }
}

function submit() {
  if (!question.value.trim() || writing.has(current.id)) return;
  const text = question.value;
  question.value = '';
  send(text);
}

function listen() {
  byId('composer').addEventListener('submit', (event) => {
    event.preventDefault();
    submit();
  });
  question.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  document.addEventListener('keydown', onKey);
  byId('stop').addEventListener('click', () => writing.get(current.id)?.abort());
  byId('new').addEventListener('click', begin);
  byId('rename').addEventListener('click', rename);
  byId('export').addEventListener('click', exportFile);
  byId('import').addEventListener('click', () => byId('file').click());
  byId('file').addEventListener('change', ({ target }) => {
    if (target.files[0]) importFile(target.files[0]);
    target.value = ''; // the same file may come again
  });
  byId('menu').addEventListener('click', () => openSidebar(!byId('sidebar').classList.contains('open')));
  byId('scroll').addEventListener('click', () => openSidebar(false));
}

async function start() {
  startPanel({
    changed: (part) => {
      Object.assign(current, part);
      if (current.messages.length && !writing.has(current.id)) store.put(current).catch(() => {});
    },
    recoloured: refresh,
  });
  listen();
  refresh();
  conversations = await store.open();
  if (conversations.length) choose(conversations[0]);
  if (!store.lasts) warn('This browser keeps nothing here: conversations end with the page.');
  try {
    models = await withKey(() => listModels(key.get()));
  } catch (error) {
    warn(error.message);
  }
  showSettings(current, models);
}

start();

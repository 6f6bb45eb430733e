// The messages of a conversation as elements.

import { shade, statsText, tokenTexts } from './conversation.js';
import { button, byId, copyButton, el } from './dom.js';
import { render } from './render.js';

const list = byId('messages');
const scroll = byId('scroll');
const WHO = { user: 'You', assistant: 'Answer' };

/** Shows all messages. actions: edit(index, text), regenerate(); inColour: whether tokens are. */
export function showMessages(messages, { writing, inColour, actions }) {
  list.replaceChildren(
    ...messages.map((message, index) => {
      const isLast = index === messages.length - 1;
      return item(message, { index, inColour, actions, isLast, writing });
    }),
  );
  list.setAttribute('aria-busy', String(writing));
}

/** Shows the last message again, which has grown. */
export function showGrowth(message, inColour) {
  const follows = isAtEnd();
  const body = list.lastElementChild?.querySelector('.body');
  if (body) fill(body, message, inColour);
  if (follows) scrollToEnd();
}

export function scrollToEnd() {
  scroll.scrollTop = scroll.scrollHeight;
}

function isAtEnd() {
  return scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 40;
}

function item(message, given) {
  const { index, inColour, actions, isLast, writing } = given;
  const body = el('div', { className: 'body' });
  fill(body, message, inColour);
  const foot = el('footer');
  const found = el(
    'li',
    { className: message.role },
    el('h3', { className: 'unseen' }, WHO[message.role]),
    body,
    foot,
  );
  if (isLast && writing) {
    found.classList.add('writing');
    return found;
  }
  const isAnswer = message.role === 'assistant';
  if (isAnswer && message.note) foot.append(el('span', { className: 'note' }, message.note));
  if (isAnswer && message.stats) foot.append(el('span', { className: 'stats' }, statsText(message.stats)));
  const change = button('Edit', 'Change this message', () => edit(found, message, index, actions));
  const tools = el('span', { className: 'tools' }, copyButton(() => message.content, 'Copy this message'));
  if (!writing) tools.append(change);
  if (!writing && isLast) {
    const [name, title] = isAnswer ? ['Again', 'Write this answer anew'] : ['Answer', 'Answer this'];
    tools.append(button(name, title, actions.regenerate));
  }
  foot.append(tools);
  return found;
}

function fill(body, message, inColour) {
  const { role, content, tokens } = message;
  const mode = role === 'user' ? 'plain' : inColour && tokens?.length ? 'tokens' : 'prose';
  if (body.dataset.mode !== mode) body.replaceChildren();
  body.dataset.mode = mode;
  if (mode === 'plain') body.textContent = content;
  else if (mode === 'prose') render(body, content);
  else colour(body, tokens);
}

/** Tokens shaded by their probability; those that are shown already stay. */
function colour(body, tokens) {
  const texts = tokenTexts(tokens);
  for (let i = body.childNodes.length; i < tokens.length; i++) {
    const [, logprob, others] = tokens[i];
    const title = others.length ? others.map(percent).join('\n') : percent(['', logprob]);
    body.append(el('span', { className: `token p${shade(logprob)}`, title }, texts[i]));
  }
}

function percent([text, logprob]) {
  return `${(100 * Math.exp(logprob)).toFixed(1).padStart(5)} % ${JSON.stringify(text)}`;
}

/** Turns a message into a field; a question that was changed is asked anew. */
function edit(place, message, index, actions) {
  const isQuestion = message.role === 'user';
  const field = el('textarea', { value: message.content, 'aria-label': 'Text of the message' });
  field.rows = Math.min(20, message.content.split('\n').length + 1);
  const done = button(
    isQuestion ? 'Send' : 'Keep',
    isQuestion ? 'Ask this; what follows is deleted (Ctrl+Enter)' : 'Keep the change (Ctrl+Enter)',
    () => actions.edit(index, field.value),
    '',
  );
  const cancel = button('Cancel', 'Leave the message as it was (Esc)', actions.refresh);
  field.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) done.click();
    else if (event.key === 'Escape') cancel.click();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  place.replaceChildren(field, el('footer', {}, done, cancel));
  field.focus();
}

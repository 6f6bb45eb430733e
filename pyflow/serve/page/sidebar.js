// The list of conversations, and the dialog that asks for a name or a key.

import { titleOf } from './conversation.js';
import { button, byId, el } from './dom.js';

const list = byId('conversations');
const sidebar = byId('sidebar');
const menu = byId('menu');
const dialog = byId('ask');
const field = byId('answer');

/** actions: choose(conversation), remove(conversation). */
export function showConversations(conversations, current, actions) {
  list.replaceChildren(
    ...conversations.map((each) => {
      const name = titleOf(each);
      const choose = button(name, name, () => actions.choose(each), 'name');
      if (each === current) choose.setAttribute('aria-current', 'true');
      const remove = button('×', `Delete “${name}”`, () => actions.remove(each), 'quiet remove');
      remove.setAttribute('aria-label', `Delete “${name}”`);
      return el('li', {}, choose, remove);
    }),
  );
}

/** On a narrow screen the list lies over the page. */
export function openSidebar(open) {
  sidebar.classList.toggle('open', open);
  menu.setAttribute('aria-expanded', String(open));
  if (open) list.querySelector('button')?.focus();
}

/** What was typed; null if nothing was. kind: of the field, `text` or `password`, or `hidden` for a
 * question of yes or no. */
export function ask(label, { value = '', kind = 'text', more = '', yes = 'OK' } = {}) {
  byId('asked').textContent = label;
  byId('more').textContent = more;
  byId('yes').textContent = yes;
  field.type = kind;
  field.value = value;
  dialog.returnValue = '';
  dialog.showModal();
  if (kind === 'hidden') byId('yes').focus();
  else field.select();
  return new Promise((resolve) => {
    const closed = () => {
      resolve(dialog.returnValue === 'yes' ? field.value : null);
      field.value = '';
    };
    dialog.addEventListener('close', closed, { once: true });
  });
}

byId('cancel').addEventListener('click', () => dialog.close());

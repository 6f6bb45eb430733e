// The panel of settings: model, system prompt, sampling, colours, theme.

import { NUMBERS } from './conversation.js';
import { byId, el } from './dom.js';
import { setting } from './store.js';

const panel = byId('panel');
const opener = byId('settings');

/** changed(part) gets the fields of a conversation that differ now; recoloured() follows a change
 * of the colours. */
export function startPanel({ changed, recoloured }) {
  for (const [name, { label, ...limits }] of Object.entries(NUMBERS)) {
    const kind = { type: 'number', inputMode: 'decimal', placeholder: 'default' };
    const field = el('input', { ...kind, id: name, ...limits });
    byId('numbers').append(el('label', { htmlFor: name }, label), field);
  }
  byId('fields').addEventListener('submit', (event) => event.preventDefault());
  byId('fields').addEventListener('input', ({ target }) => {
    if (target.id === 'colour') {
      setting.set('colour', target.checked ? 'yes' : '');
      showLegend();
      recoloured();
    } else changed({ model: byId('model').value, system: byId('system').value, settings: readNumbers() });
  });
  byId('colour').checked = setting.get('colour') === 'yes';
  showLegend();
  opener.addEventListener('click', () => openPanel(panel.hidden));
  byId('close').addEventListener('click', () => openPanel(false));
  startTheme();
}

export const inColour = () => byId('colour').checked;

export function openPanel(open) {
  panel.hidden = !open;
  opener.setAttribute('aria-expanded', String(open));
  (open ? byId('model') : opener).focus();
}

export const isPanelOpen = () => !panel.hidden;

/** Shows the settings of a conversation; a model that the server does not have stays in the list. */
export function showSettings({ model, system, settings }, models) {
  const names = models.map(({ id }) => id);
  if (model && !names.includes(model)) names.push(model);
  const options = names.map((id) => el('option', { value: id }, id));
  byId('model').replaceChildren(...options);
  byId('model').value = model || names[0] || '';
  byId('system').value = system;
  for (const name of Object.keys(NUMBERS)) byId(name).value = settings[name] ?? '';
}

/** Numbers that are given and within their limits. */
function readNumbers() {
  const given = Object.keys(NUMBERS).map((name) => [name, byId(name)]);
  const valid = given.filter(([, field]) => field.value !== '' && field.checkValidity());
  return Object.fromEntries(valid.map(([name, field]) => [name, field.valueAsNumber]));
}

function showLegend() {
  byId('legend').hidden = !inColour();
}

function startTheme() {
  const choice = byId('theme');
  const show = () => {
    document.documentElement.dataset.theme = choice.value;
  };
  choice.value = setting.get('theme');
  choice.addEventListener('change', () => {
    setting.set('theme', choice.value);
    show();
  });
  show();
}

// What the page does without a browser: Markdown, events of a stream, conversations as files.

import assert from 'node:assert/strict';

// As much of a document as render.js uses.
class Element {
  constructor(name, text = '') {
    Object.assign(this, { name, childNodes: [], own: text, attributes: {} });
  }
  append(...nodes) {
    for (const each of nodes) {
      const node = typeof each === 'string' ? new Element('#text', each) : each;
      node.parent = this;
      this.childNodes.push(node);
    }
  }
  remove() {
    this.parent.childNodes.splice(this.parent.childNodes.indexOf(this), 1);
  }
  get lastChild() {
    return this.childNodes.at(-1);
  }
  get textContent() {
    return this.own + this.childNodes.map((node) => node.textContent).join('');
  }
  setAttribute(name, value) {
    this.attributes[name] = value;
  }
  addEventListener() {}
  /** Like HTML, without attributes; buttons are left out. */
  get shape() {
    if (this.name === '#text') return this.own;
    if (this.name === 'button') return '';
    return `<${this.name}>${this.childNodes.map((node) => node.shape).join('')}</${this.name}>`;
  }
  *all() {
    yield this;
    for (const node of this.childNodes) yield* node.all();
  }
}
globalThis.document = {
  createElement: (name) => new Element(name),
  createTextNode: (text) => new Element('#text', text),
};

const { render } = await import('./render.js');
const { EventReader, ServerError, readEvent } = await import('./stream.js');
const { bodyOf, conversation, exported, imported, statsOf, tokenTexts } = await import('./conversation.js');

function rendered(text) {
  const target = new Element('div');
  render(target, text);
  return target;
}
const shapes = (text) => rendered(text).childNodes.map((node) => node.shape).join('');

// Markdown becomes elements.
for (const [text, shape] of [
  ['a\nb\n\nc', '<p>a\nb</p><p>c</p>'],
  ['# A #\n###### B', '<h3>A</h3><h6>B</h6>'],
  ['about C#\n# C#', '<p>about C#</p><h3>C#</h3>'],
  ['**a** *b* `c` ***d***', '<p><strong>a</strong> <em>b</em> <code>c</code> <strong><em>d</em></strong></p>'],
  ['**a *b***', '<p><strong>a <em>b</em></strong></p>'],
  ['*a **b***', '<p><em>a <strong>b</strong></em></p>'],
  ['__a__ _b_ snake_case_name 2*3*4', '<p><strong>a</strong> <em>b</em> snake_case_name 2<em>3</em>4</p>'],
  ['*a `*` b* and \\*c\\*', '<p><em>a <code>*</code> b</em> and *c*</p>'],
  ['**a *b** c', '<p><strong>a *b</strong> c</p>'],
  ['3 * 4 * 5, ** and `', '<p>3 * 4 * 5, ** and `</p>'],
  ['``a`b``', '<p><code>a`b</code></p>'],
  ['```js x\na < b\n  c\n```\nd', '<figure><figcaption><span>js x</span></figcaption><pre><code>a < b\n  c</code></pre></figure><p>d</p>'],
  ['~~~\n```\n', '<figure><figcaption><span>text</span></figcaption><pre><code>```\n</code></pre></figure>'],
  ['- a\n- b\n  - c\n\n  d\n- e', '<ul><li>a</li><li>b<ul><li>c</li></ul><p>d</p></li><li>e</li></ul>'],
  ['1. a\n\n   ```\n   x\n   ```\n2. b', '<ol><li>a<figure><figcaption><span>text</span></figcaption><pre><code>x</code></pre></figure></li><li>b</li></ol>'],
  ['a\n- b\nc\n\nd', '<p>a</p><ul><li>b\nc</li></ul><p>d</p>'],
  ['> a\n> - b\n\n---', '<blockquote><p>a</p><ul><li>b</li></ul></blockquote><hr></hr>'],
  ['[a *b*](https://x.example/c_(d))', '<p><a>a <em>b</em></a></p>'],
  ['see https://x.example/a_b.', '<p>see <a>https://x.example/a_b</a>.</p>'],
]) {
  assert.equal(shapes(text), shape, JSON.stringify(text));
}
assert.equal(rendered('3. a').childNodes[0].start, 3);

// HTML, images and other addresses stay text.
for (const text of [
  '<img src=x onerror=alert(1)>',
  '<script>alert(1)</script>',
  '![a](https://x.example/a.png)',
  '[a](javascript:alert(1))',
  '[a](data:text/html,x)',
  '[a](//x.example)',
  '[a](JaVaScRiPt:alert(1))',
  '[a](\u0001javascript:alert(1))',
  'javascript:alert(1)',
]) {
  assert.equal(shapes(text), `<p>${text}</p>`);
}

// Any text becomes known elements, keeps its letters, and in parts what it is at once.
const KNOWN = /^(div|p|h[3-6]|ul|ol|li|blockquote|hr|pre|code|figure|figcaption|span|button|strong|em|a|#text)$/;
let state = 1;
const random = (n) => (state = (state * 48271) % 2147483647) % n;
const letters = (text) => text.replace(/[^a-c]/g, '');
for (let i = 0; i < 3000; i++) {
  const parts = Array.from({ length: random(40) }, () => 'a b c * ** _ ` ``` ~~~ [ ]( ) ! # > - 1. \n \n  \\ < |'.split(' ')[random(22)] || ' ');
  const text = parts.join('');
  const whole = rendered(text);
  for (const node of whole.all()) assert.match(node.name, KNOWN);
  const shown = [...whole.all()].filter((node) => node.parent?.name !== 'button' && node.name === '#text');
  assert.equal(letters(shown.map((node) => node.own).join('')).length, letters(text).length, JSON.stringify(text));
  const grown = new Element('div');
  for (let end = 0; end <= text.length; end += 1 + random(5)) render(grown, text.slice(0, end));
  render(grown, text);
  assert.equal(grown.shape, whole.shape);
}

// Blocks that stay as they were keep their elements.
{
  const target = rendered('a\n\nb');
  const first = target.childNodes[0];
  render(target, 'a\n\nbc');
  assert.equal(target.childNodes[0], first);
}

// Long texts of marks end soon, without too deep a stack.
for (const mark of ['*', '_', '`', '[', '](', '![', '[](', '> ', '- ', '* a\n', '#', '\n', '*a _b ', '`a', '``` a`', '\\', ' ', '(', 'https://', '1. ']) {
  rendered(mark.repeat(30_000));
}

// Events come out whole, however they are cut.
{
  const raw = ': ping\n\ndata: {"a":1}\n\nevent: x\r\ndata: b\r\ndata:c\r\n\r\ndata: [DONE]\n\n';
  for (let cut = 0; cut <= raw.length; cut++) {
    const events = new EventReader();
    const found = [...events.feed(raw.slice(0, cut)), ...events.feed(raw.slice(cut))];
    assert.deepEqual(found, ['{"a":1}', 'b\nc', '[DONE]']);
  }
  assert.equal(readEvent('[DONE]'), null);
  assert.throws(() => readEvent('{"error": {"message": "broken"}}'), ServerError);
}

// A token may hold a part of a character.
assert.deepEqual(tokenTexts([[[65], 0, []], [[0xc3], 0, []], [[0xa9, 66], 0, []]]), ['A', '', 'éB']);

// What is sent has the system prompt first, and nothing of the page's own.
{
  const asked = conversation({ system: 'S', settings: { top_k: 3 }, messages: [{ role: 'user', content: 'Q', note: 'n' }] });
  const body = bodyOf(asked, true);
  assert.deepEqual(body.messages, [{ role: 'system', content: 'S' }, { role: 'user', content: 'Q' }]);
  assert.deepEqual([body.top_k, body.logprobs, body.model, body.temperature], [3, true, undefined, undefined]);
  assert.equal(statsOf({ completion_tokens: 11 }, { start: 0, first: 500, last: 2500 }, 1).speed, 5);
}

// A conversation comes back from its file; other files are refused.
{
  const tokens = [[[72], -0.5, [['H', -0.5]]]];
  const messages = [{ role: 'user', content: 'Q' }, { role: 'assistant', content: 'H', tokens, stats: { drawn: 1 }, note: 'stopped' }];
  const given = conversation({ title: 'T', system: 'S', model: 'm', settings: { temperature: 0, seed: 4 }, messages });
  const again = imported(exported(given));
  for (const name of ['title', 'system', 'model', 'settings', 'messages']) assert.deepEqual(again[name], given[name]);
  assert.notEqual(again.id, given.id);
  assert.equal(imported('{"messages": [{"role": "developer", "content": "S"}]}').system, 'S');
  assert.deepEqual(imported('{"messages": [], "settings": {"seed": "1", "__proto__": 3, "top_p": null}}').settings, {});
  const bad = [[[256], 0, []]];
  assert.equal(imported(JSON.stringify([{ role: 'user', content: '', tokens: bad }])).messages[0].tokens, undefined);
  for (const text of ['', '[', 'null', '3', '{}', '{"messages": [3]}', '[{"role": "tool", "content": ""}]', '[{"role": "user"}]']) {
    assert.throws(() => imported(text), Error, text);
  }
}

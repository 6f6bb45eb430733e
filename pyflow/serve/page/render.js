// Blocks of Markdown as elements.

import { copyButton, el } from './dom.js';
import { parse, parseInline } from './markdown.js';

const shown = new WeakMap();

/** Shows a text as Markdown; blocks that stay as they were keep their elements. */
export function render(target, text) {
  const blocks = parse(text);
  const keys = blocks.map((block) => JSON.stringify(block));
  const before = shown.get(target) ?? [];
  let same = 0;
  while (same < keys.length && keys[same] === before[same]) same++;
  while (target.childNodes.length > same) target.lastChild.remove();
  for (const block of blocks.slice(same)) target.append(element(block));
  shown.set(target, keys);
}

function element(block) {
  switch (block.kind) {
    case 'heading':
      // Below the titles of the page itself.
      return el(`h${Math.min(6, block.level + 2)}`, {}, inline(block.text));
    case 'code':
      return figure(block);
    case 'quote':
      return el('blockquote', {}, block.blocks.map(element));
    case 'rule':
      return el('hr');
    case 'list': {
      const items = block.items.map((item) => el('li', {}, inItem(item)));
      return block.ordered ? el('ol', { start: block.start }, items) : el('ul', {}, items);
    }
    default:
      return el('p', {}, inline(block.text));
  }
}

/** An item of one paragraph is that paragraph's text. */
function inItem(blocks) {
  if (blocks[0]?.kind !== 'paragraph') return blocks.map(element);
  return inline(blocks[0].text).concat(blocks.slice(1).map(element));
}

function figure({ language, text }) {
  const copy = copyButton(() => text, 'Copy this code');
  const caption = el('figcaption', {}, el('span', {}, language || 'text'), copy);
  const pre = el('pre', { tabIndex: 0 }, el('code', {}, text));
  return el('figure', { className: 'code' }, caption, pre);
}

function inline(text) {
  return parseInline(text).map(node);
}

function node(given) {
  if (typeof given === 'string') return document.createTextNode(given);
  if (given.tag === 'code') return el('code', {}, given.text);
  const inside = given.inside.map(node);
  if (given.tag !== 'a') return el(given.tag, {}, inside);
  const rel = 'noreferrer noopener nofollow';
  return el('a', { href: given.href, rel, target: '_blank', title: given.href }, inside);
}

// A small part of Markdown as DOM nodes. All text goes in by textContent, images stay text, and
// links lead to http and https alone. Time grows linearly with the text, nesting is bounded.

const DEEPEST_BLOCK = 8;
const DEEPEST_MARK = 16;
const LONGEST_LABEL = 500;
const LONGEST_LINK = 2000;

const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;
const HEADING = /^ {0,3}(#{1,6})(?: |$)/;
const isFence = (line) => FENCE.test(line) && !(line.trim()[0] === '`' && /[^`]`/.test(line.trim()));
const isBlank = (line) => line.trim() === '';
const indentOf = (line) => line.length - line.trimStart().length;

/** Blocks: {kind: paragraph, heading, code, list, quote, rule, ...}. */
export function parse(text) {
  return blocksOf(text.replaceAll('\r\n', '\n').replaceAll('\t', '    ').split('\n'), 0);
}

function blocksOf(lines, depth) {
  const found = [];
  let i = 0;
  while (i < lines.length) {
    const line = lines[i];
    const take = (block, next) => {
      found.push(block);
      i = next;
    };
    if (isBlank(line)) i++;
    else if (isFence(line)) take(...code(lines, i));
    else if (HEADING.test(line)) take(heading(line), i + 1);
    else if (isRule(line)) take({ kind: 'rule' }, i + 1);
    else if (depth < DEEPEST_BLOCK && isQuote(line)) take(...quote(lines, i, depth));
    else if (depth < DEEPEST_BLOCK && ITEM.test(line)) take(...list(lines, i, depth));
    else take(...paragraph(lines, i, depth));
  }
  return found;
}

function code(lines, start) {
  const [, fence] = lines[start].match(FENCE);
  const language = lines[start].trim().slice(fence.length).trim();
  const indent = indentOf(lines[start]);
  let end = start + 1;
  while (end < lines.length && !closes(lines[end], fence)) end++;
  const body = lines.slice(start + 1, end).map((l) => l.slice(Math.min(indent, indentOf(l))));
  return [{ kind: 'code', language, text: body.join('\n') }, end + 1];
}

function closes(line, fence) {
  const text = line.trim();
  return text.length >= fence.length && text === fence[0].repeat(text.length);
}

function heading(line) {
  const text = line.trim();
  const level = text.match(/^#+/)[0].length;
  const inside = text.slice(level).trim();
  let end = inside.length;
  while (end > 0 && inside[end - 1] === '#') end--;
  if (end > 0 && inside[end - 1] !== ' ') end = inside.length; // as in "C#"
  return { kind: 'heading', level, text: inside.slice(0, end).trim() };
}

function isRule(line) {
  const marks = line.replaceAll(' ', '');
  return marks.length > 2 && '-*_'.includes(marks[0]) && marks === marks[0].repeat(marks.length);
}

const isQuote = (line) => line.trimStart().startsWith('>') && indentOf(line) < 4;

function quote(lines, start, depth) {
  let end = start;
  while (end < lines.length && isQuote(lines[end])) end++;
  const inside = lines.slice(start, end).map((line) => line.trimStart().replace(/^> ?/, ''));
  return [{ kind: 'quote', blocks: blocksOf(inside, depth + 1) }, end];
}

const isOrdered = (mark) => /\d/.test(mark);

function list(lines, start, depth) {
  const [, , first] = lines[start].match(ITEM);
  const ordered = isOrdered(first);
  const items = [];
  let i = start;
  while (i < lines.length) {
    const head = lines[i].match(ITEM);
    if (!head || isOrdered(head[2]) !== ordered || isRule(lines[i])) break;
    const end = endOfItem(lines, i, head[1].length + 2);
    const inside = [lines[i].slice(head[0].length), ...lines.slice(i + 1, end)];
    items.push(blocksOf(outdented(inside, head[0].length), depth + 1));
    i = end;
    while (i < lines.length && isBlank(lines[i])) i++;
  }
  return [{ kind: 'list', ordered, start: ordered ? parseInt(first, 10) : 1, items }, i];
}

/** Lines of an item after the first one, with less indent: at most what the first one has. */
function outdented(lines, most) {
  let indent = most;
  for (const line of lines.slice(1)) {
    if (!isBlank(line) && indentOf(line) > 0) indent = Math.min(indent, indentOf(line));
  }
  return lines.map((line, k) => (k ? line.slice(Math.min(indent, indentOf(line))) : line));
}

/** Where an item ends: deeper lines belong to it, and those that go on with its paragraph. */
function endOfItem(lines, start, deep) {
  let i = start + 1;
  while (i < lines.length) {
    if (isBlank(lines[i])) {
      let next = i;
      while (next < lines.length && isBlank(lines[next])) next++;
      if (next === lines.length || indentOf(lines[next]) < deep) return i;
      i = next;
    } else if (indentOf(lines[i]) < deep && beginsBlock(lines[i])) return i;
    i++;
  }
  return i;
}

const beginsFlatBlock = (line) => isFence(line) || HEADING.test(line) || isRule(line);
const beginsBlock = (line) => beginsFlatBlock(line) || ITEM.test(line) || isQuote(line);

function paragraph(lines, start, depth) {
  let end = start + 1;
  const stops = depth < DEEPEST_BLOCK ? beginsBlock : beginsFlatBlock;
  while (end < lines.length && !isBlank(lines[end]) && !stops(lines[end])) end++;
  return [{ kind: 'paragraph', text: lines.slice(start, end).map((l) => l.trim()).join('\n') }, end];
}

/** Nodes: texts, {tag: code, text}, {tag: a, href, inside}, {tag: strong or em, inside}. */
export function parseInline(text, withLinks = true) {
  return nested(tokens(text, withLinks));
}

function tokens(text, withLinks) {
  const found = [];
  const missing = new Set(); // runs of backticks that nothing closes
  let plain = 0;
  let i = 0;
  const put = (end, ...nodes) => {
    if (plain < i) found.push(text.slice(plain, i));
    found.push(...nodes);
    i = plain = end;
  };
  while (i < text.length) {
    const char = text[i];
    if (char === '\\' && /[!-/:-@[-`{-~]/.test(text[i + 1] ?? '')) put(i + 2, text[i + 1]);
    else if (char === '`') {
      const n = runAt(text, i);
      const end = missing.has(n) ? -1 : closing(text, i + n, n);
      if (end < 0) missing.add(n);
      if (end < 0) i += n;
      else put(end + n, { tag: 'code', text: text.slice(i + n, end).replace(/^ (.+) $/s, '$1') });
    } else if (char === '!' && text[i + 1] === '[') {
      const image = linkAt(text, i + 1);
      i = image ? image.end : i + 2; // stays as it is written
    } else if (char === '[' && withLinks) {
      const link = linkAt(text, i);
      const href = link && address(link.href);
      if (href) put(link.end, { tag: 'a', href, inside: parseInline(link.label, false) });
      else i = link ? link.end : i + 1;
    } else if (char === 'h' && withLinks && /^https?:\/\/[^\s]/.test(text.slice(i, i + 9))) {
      const end = endOfAddress(text, i);
      const href = address(text.slice(i, end));
      if (href) put(end, { tag: 'a', href, inside: [text.slice(i, end)] });
      else i = end;
    } else if (char === '*' || char === '_') {
      const n = runAt(text, i);
      const mark = n > 3 ? null : markAt(text, i, n);
      if (mark) put(i + n, mark);
      else i += n;
    } else i++;
  }
  put(text.length);
  return found;
}

function runAt(text, start) {
  let end = start;
  while (text[end] === text[start] && end < text.length) end++;
  return end - start;
}

/** Where a run of n backticks begins, or -1. */
function closing(text, start, n) {
  for (let at = text.indexOf('`', start); at >= 0; ) {
    const run = runAt(text, at);
    if (run === n) return at;
    at = text.indexOf('`', at + run);
  }
  return -1;
}

/** [label](href) at this place, or null. */
function linkAt(text, start) {
  const label = text.slice(start + 1, start + LONGEST_LABEL);
  const middle = label.indexOf('](');
  if (middle < 0) return null;
  const from = start + middle + 3;
  let depth = 1;
  for (let end = from; end < Math.min(text.length, from + LONGEST_LINK); end++) {
    if (/[\s[<>"]/.test(text[end])) return null;
    depth += (text[end] === '(') - (text[end] === ')');
    if (depth === 0) return { label: label.slice(0, middle), href: text.slice(from, end), end: end + 1 };
  }
  return null;
}

function endOfAddress(text, start) {
  let end = start;
  while (end < text.length && end < start + LONGEST_LINK && !/[\s<>"`\\]/.test(text[end])) end++;
  while (/[.,;:!?'*_)\]]/.test(text[end - 1])) end--;
  return end;
}

/** An address that a link may have, or the empty text. */
function address(text) {
  try {
    const url = new URL(text);
    return url.protocol === 'https:' || url.protocol === 'http:' ? url.href : '';
  } catch {
    return '';
  }
}

/** A run of * or _ that may open or close, or null. */
function markAt(text, at, n) {
  const before = text[at - 1] ?? ' ';
  const after = text[at + n] ?? ' ';
  const isWord = (char) => /[\p{L}\p{N}]/u.test(char);
  const within = text[at] === '_' && isWord(before) && isWord(after); // as in snake_case
  const opens = !/\s/.test(after) && !within;
  const ends = !/\s/.test(before) && !within;
  return opens || ends ? { mark: text[at].repeat(n), opens, ends } : null;
}

/** Pairs marks; those without a partner are text. */
function nested(given) {
  const open = [{ mark: '', nodes: [] }];
  const counts = new Map();
  const count = (mark, by) => counts.set(mark, (counts.get(mark) ?? 0) + by);
  const put = (node) => open.at(-1).nodes.push(node);
  const leave = () => {
    const { mark, nodes } = open.pop();
    count(mark, -1);
    return [mark, nodes];
  };
  const lose = () => {
    const [lost, nodes] = leave();
    put(lost);
    for (const node of nodes) put(node);
  };
  for (const each of given) {
    if (each.mark === undefined) {
      put(each);
      continue;
    }
    let { mark } = each;
    // "***" may end one of "*" and one of "**", whichever is inside.
    if (each.ends && mark.length === 3 && !counts.get(mark)) {
      const inner = open.at(-1).mark;
      if (inner && inner.length < 3 && inner[0] === mark[0]) {
        put(wrapped(...leave()));
        mark = mark.slice(inner.length);
      }
    }
    if (each.ends && counts.get(mark)) {
      while (open.at(-1).mark !== mark) lose();
      put(wrapped(...leave()));
    } else if (each.opens && open.length < DEEPEST_MARK) {
      open.push({ mark, nodes: [] });
      count(mark, 1);
    } else put(mark);
  }
  while (open.length > 1) lose();
  return open[0].nodes;
}

function wrapped(mark, inside) {
  if (mark.length === 3) return { tag: 'strong', inside: [{ tag: 'em', inside }] };
  return { tag: mark.length === 2 ? 'strong' : 'em', inside };
}

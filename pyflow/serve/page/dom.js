// Elements by name, made without any HTML from strings.

export const byId = (id) => document.getElementById(id);

/** An element with properties, attributes (names with a dash, and role), listeners, and children:
 * texts, nodes, and arrays of them. */
export function el(name, given = {}, ...children) {
  const found = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (key.includes('-') || key === 'role') found.setAttribute(key, value);
    else if (key.startsWith('on')) found.addEventListener(key.slice(2), value);
    else found[key] = value;
  }
  for (const child of children.flat()) found.append(child);
  return found;
}

export const button = (text, title, onclick, className = 'quiet') =>
  el('button', { type: 'button', className, title, onclick }, text);

/** A button that copies text and says so. */
export function copyButton(textOf, title = 'Copy') {
  const found = button('Copy', title, async () => {
    try {
      await navigator.clipboard.writeText(textOf());
      found.textContent = 'Copied';
    } catch {
      found.textContent = 'Not allowed';
    }
    setTimeout(() => (found.textContent = 'Copy'), 1500);
  });
  return found;
}

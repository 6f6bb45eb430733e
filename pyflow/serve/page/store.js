// Conversations in the browser's own database; in memory where there is none.

const NAME = 'pyflow';
const TABLE = 'conversations';

const promised = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

async function opened() {
  const request = indexedDB.open(NAME, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(TABLE, { keyPath: 'id' });
  return promised(request);
}

export class Store {
  #database = null;

  /** Whether conversations outlast the page. */
  get lasts() {
    return this.#database !== null;
  }

  /** All conversations, the last changed first. */
  async open() {
    try {
      this.#database = await opened();
      const found = await promised(this.#table('readonly').getAll());
      return found.sort((a, b) => b.changed - a.changed);
    } catch {
      this.#database = null;
      return [];
    }
  }

  /** Rejects if the browser has no room. */
  async put(conversation) {
    if (this.#database) await promised(this.#table('readwrite').put(structuredClone(conversation)));
  }

  async remove(id) {
    if (this.#database) await promised(this.#table('readwrite').delete(id));
  }

  #table(mode) {
    return this.#database.transaction(TABLE, mode).objectStore(TABLE);
  }
}

/** A setting of this browser; where nothing may be kept, of this page. */
export const setting = {
  get(name) {
    try {
      return localStorage.getItem(`pyflow.${name}`) ?? '';
    } catch {
      return '';
    }
  },
  set(name, value) {
    try {
      localStorage.setItem(`pyflow.${name}`, value);
    } catch {
      // It lasts as long as the page.
    }
  },
};

let keyInMemory = '';

/** The server's key, for as long as the tab is open. */
export const key = {
  get() {
    try {
      return sessionStorage.getItem('pyflow.key') ?? '';
    } catch {
      return keyInMemory;
    }
  },
  set(value) {
    keyInMemory = value;
    try {
      sessionStorage.setItem('pyflow.key', value);
    } catch {
      // It lasts as long as the page.
    }
  },
};

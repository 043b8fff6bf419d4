// What is asked of the gateway. The key lives in this tab's session storage, and goes out in a header only.

const KEY = "exahpc.key";
const PATIENCE = 15_000; // milliseconds

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

const etags = new Map(); // kind -> entity tag of the answer that we have

// The answer's JSON; null when it is the one that `kind` got last.
export async function ask(path, kind = null) {
  const headers = { Authorization: `Bearer ${key.get()}` };
  if (kind && etags.has(kind)) headers["If-None-Match"] = etags.get(kind);
  const answer = await fetch(path, {
    headers, cache: "no-store", credentials: "omit", redirect: "error", signal: AbortSignal.timeout(PATIENCE),
  });
  if (answer.status === 304) return null;
  if (!answer.ok) throw new Refused(answer.status, await reason(answer));
  if (kind) etags.set(kind, answer.headers.get("etag"));
  return answer.json();
}

export function forgetAnswers() {
  etags.clear();
}

async function reason(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `the gateway answers ${answer.status}`;
  }
}

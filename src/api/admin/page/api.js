// Requests to the endpoints of this listener. The token is in this module only: in no cookie, storage or URL.

let token = null;

export function useToken(text) {
  token = text;
}

/** Whether the service has a token, which calls of operators need. */
export function hasToken() {
  return token !== null;
}

/** An answer other than success. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** What an error says: a text, or the message of a status in JSON. */
function reason(text) {
  try {
    return JSON.parse(text).message ?? text;
  } catch {
    return text.trim();
  }
}

async function request(method, path, signal, body) {
  const headers = token === null ? {} : { authorization: `Bearer ${token}` };
  const response = await fetch(path, { method, headers, body, signal, cache: "no-store", credentials: "omit" });
  if (!response.ok) throw new Refusal(response.status, reason(await response.text()) || response.statusText);
  return response;
}

/** The JSON of an endpoint. */
export async function ask(method, path, parameters = [], signal = undefined) {
  const query = new URLSearchParams(parameters).toString();
  return (await request(method, query ? `${path}?${query}` : path, signal)).json();
}

/** The answer of a call of tollgate.v1. */
export async function call(path, message) {
  return (await request("POST", path, undefined, JSON.stringify(message))).json();
}

/** Each line of a stream of JSON. */
export async function* lines(path, signal) {
  const response = await request("GET", path, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) yield JSON.parse(part);
  }
}

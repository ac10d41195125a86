// The studio's server, when there is one. A file has none: `server` is null there, and live controls say
// which command would run them.

import { t } from "sinkgate/lib/language.js";

/** What the server answered when it refused: one line for the reader. */
export class Refused extends Error {}

export function connect(token) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};

  async function ask(path, { body, signal } = {}) {
    let answer;
    try {
      answer = await fetch(path, { method: body === undefined ? "GET" : "POST", signal, cache: "no-store",
        headers: body === undefined ? headers : { ...headers, "Content-Type": "application/json" }, body: body === undefined ? undefined : JSON.stringify(body) });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refused(t("The server does not answer. Is sinkgate studio still running?"));
    }
    if (!answer.ok) {
      const said = await answer.json().catch(() => null);
      throw new Refused(said?.error ?? t("The server refused this ({status}).", { status: answer.status }));
    }
    return answer;
  }

  return {
    get: async (path, options) => (await ask(path, options)).json(),
    post: async (path, body, options = {}) => (await ask(path, { ...options, body })).json(),

    /** Read an answer of one JSON object per line as it comes; `signal` ends it, here and on the server. */
    async stream(path, body, each, signal) {
      const reader = (await ask(path, { body, signal })).body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        const lines = (rest + value).split("\n");
        rest = lines.pop();
        for (const line of lines) {
          const said = JSON.parse(line);
          if (said.error) throw new Refused(said.error);
          each(said);
        }
      }
    },
  };
}

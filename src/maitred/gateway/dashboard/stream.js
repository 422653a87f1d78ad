// The stream of a gateway: `fetch` reads its events, because EventSource cannot send a key.

/** Return a state with a merge patch (RFC 7396) applied. */
function patched(state, patch) {
  if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
  const result = state !== null && typeof state === "object" && !Array.isArray(state) ? { ...state } : {};
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) delete result[name]; else result[name] = patched(result[name], value);
  }
  return result;
}

/** Yield [event, data] of a response, until it ends. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const texts = (rest + value).split("\n\n");
    rest = texts.pop();
    for (const text of texts) {
      const lines = text.split("\n"), told = (name) => lines.find((each) => each.startsWith(`${name}: `))?.slice(name.length + 2);
      if (told("data")) yield [told("event"), JSON.parse(told("data"))];
    }
  }
}

/** Return the headers of a request to this gateway. */
function withKey(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}

/** Return what an error says. */
async function problemOf(response) {
  try {
    const { error } = await response.json();
    return error?.message ?? `HTTP ${response.status}`;
  } catch {
    return `HTTP ${response.status}`;
  }
}

/** Follows a gateway as long as the page is seen. */
class Follower {
  constructor({ onState, onProblem, onRefused }) {
    Object.assign(this, { onState, onProblem, onRefused, state: null, key: "", aborter: null });
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.start(this.key)));
  }

  start(key) {
    this.stop();
    this.key = key;
    this.aborter = new AbortController();
    this.run(this.aborter.signal);
  }

  stop() {
    this.aborter?.abort();
  }

  async run(signal) {
    for (let wait = 1000; !signal.aborted; wait = Math.min(wait * 2, 10000)) {
      try {
        const response = await fetch("maitred/events", { headers: withKey(this.key), cache: "no-store", signal });
        if (response.status === 401 || response.status === 403) {
          this.onRefused(response.status, await problemOf(response));
          return;
        }
        if (!response.ok) throw new Error(await problemOf(response));
        for await (const [event, data] of eventsOf(response)) {
          if (event === "problem") {
            this.onProblem(data.message);
            continue;
          }
          this.state = patched(event === "whole" ? {} : this.state, data);
          this.onState(this.state);
          wait = 1000;
        }
        this.onProblem("the gateway has ended the stream");
      } catch (error) {
        if (signal.aborted) return;
        this.onProblem(error instanceof TypeError ? "the gateway does not answer" : error.message);
      }
      await new Promise((done) => setTimeout(done, wait));
    }
  }
}

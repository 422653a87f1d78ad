// The SDKs of node through gateways whose addresses are in argv: what each call reads or throws, and how often it was sent.
// Prints one JSON object: {"CASE SDK": "answer"}. Run in a folder whose node_modules has the packages.

import Anthropic from '@anthropic-ai/sdk';
import { createOpenAI } from '@ai-sdk/openai';
import { generateText, streamText } from 'ai';
import OpenAI from 'openai';

const gateways = JSON.parse(process.argv[2]);

// A fetch that notes of each request after the first whether it came when the answer before had asked for it.
function noting() {
  const pauses = [];
  let due;
  const send = async (...request) => {
    const now = performance.now();
    if (due !== undefined) pauses.push(now > due - 50 ? 'in time' : 'too early');
    const response = await fetch(...request);
    due = performance.now() + 1000 * Number(response.headers.get('retry-after'));
    return response;
  };
  return { pauses, send };
}

async function collect(parts, textOf) {
  let text = '';
  for await (const part of parts) text += textOf(part) ?? '';
  return text;
}

function textOfResponse(event) {
  if (event.type === 'response.failed') throw new Error(`failed: ${event.response.error.message}`);
  return event.type === 'response.output_text.delta' ? event.delta : '';
}

function textOfPart(part) {
  if (part.type === 'error') throw part.error;
  return part.type === 'text-delta' ? part.text : '';
}

const calls = {
  'openai chat': async (to, prompt, stream) => {
    const asked = { model: 'm', messages: [{ role: 'user', content: prompt }], ...to.more };
    const { chat } = new OpenAI({ baseURL: `${to.url}/v1`, apiKey: to.key, maxRetries: 1, fetch: to.send, defaultHeaders: to.headers });
    if (!stream) return (await chat.completions.create(asked)).choices[0].message.content;
    return collect(await chat.completions.create({ ...asked, stream }), (event) => event.choices[0]?.delta.content);
  },
  'openai responses': async (to, prompt, stream) => {
    const asked = { model: 'm', input: prompt, ...to.more };
    const { responses } = new OpenAI({ baseURL: `${to.url}/v1`, apiKey: to.key, maxRetries: 1, fetch: to.send, defaultHeaders: to.headers });
    if (!stream) return (await responses.create(asked)).output_text;
    return collect(await responses.create({ ...asked, stream }), textOfResponse);
  },
  'anthropic messages': async (to, prompt, stream) => {
    const asked = { model: 'm', max_tokens: 50, messages: [{ role: 'user', content: prompt }], ...to.more };
    const { messages } = new Anthropic({ baseURL: to.url, apiKey: to.key, maxRetries: 1, fetch: to.send, defaultHeaders: to.headers });
    if (!stream) return (await messages.create(asked)).content[0].text;
    return collect(await messages.create({ ...asked, stream }), (event) => event.delta?.text);
  },
  'ai chat': async (to, prompt, stream) => {
    const model = createOpenAI({ baseURL: `${to.url}/v1`, apiKey: to.key, fetch: to.send, headers: to.headers }).chat('m');
    const asked = { model, prompt, maxRetries: 1, onError: () => {} };
    if (!stream) return (await generateText(asked)).text;
    return collect(streamText(asked).fullStream, textOfPart);
  },
};

function nameOf(error) {
  const last = error.lastError ?? error;
  return `${last.constructor.name} ${last.status ?? last.statusCode ?? last.message}`;
}

async function attempt(name, call, to, prompt, stream) {
  const { pauses, send } = noting();
  let outcome;
  try {
    outcome = await call({ ...to, send }, prompt, stream);
  } catch (error) {
    outcome = nameOf(error);
  }
  return [name, [outcome, ...pauses].join(', again ')];
}

const outcomes = Object.entries(calls).flatMap(([sdk, call]) => {
  const large = { headers: { 'x-program-id': `waiting ${sdk}` }, more: { x: 'x'.repeat(35_000) } };
  return [
    attempt(`whole: ${sdk}`, call, gateways.plain, 'hello', false),
    attempt(`stream: ${sdk}`, call, gateways.plain, 'hello', true),
    attempt(`wrong key: ${sdk}`, call, { ...gateways.plain, key: 'wrong' }, 'hello', false),
    attempt(`cut: ${sdk}`, call, gateways.plain, 'cut', true),
    attempt(`queue full: ${sdk}`, call, gateways.full, 'hello', true),
    attempt(`queue timeout: ${sdk}`, call, gateways.late, 'hello', false),
    ...(sdk === 'ai chat' ? [] : [attempt(`released: ${sdk}`, call, { ...gateways.programs, ...large }, 'hello', false)]),
  ];
});
console.log(JSON.stringify(Object.fromEntries(await Promise.all(outcomes))));
